"""Endpoints of one model service, their load and their health.

This room knows where requests may go and how busy each endpoint is; it knows nothing of prompts or of how a
strategy chooses. `pool.Pool` is what the rest of the router holds; the other modules are its parts.
"""

"""Routing policies beside each other on published traces: `python -m bench.routing`."""

"""What is to be done about an endpoint's caches: observed state in, actions out. Pure: no IO, time passed in.

One file for each rule; `plan.py` puts them together. Level-based: they go by what is, never by what happened.
"""

"""Fetching model weights beside the tools that people use for it: `python -m bench.fetch`."""

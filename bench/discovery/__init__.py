"""What a change of a large Service costs the router, with a real API server: `python -m bench.discovery`."""

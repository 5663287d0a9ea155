"""What sharing picks costs: bytes on the wire and CPU: `python -m bench.sharing`."""

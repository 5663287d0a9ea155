"""How fast a replay runs, on made traffic: `python -m bench.replay`."""

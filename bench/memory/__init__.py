"""What a router keeps of the traffic, over very many prompts: `python -m bench.memory`."""

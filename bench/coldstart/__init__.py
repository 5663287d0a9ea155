"""Time to Ready of a new pod, on prepared nodes and on others: `python -m bench.coldstart`."""

"""A Kubernetes of several nodes on one machine, made of what the package registries have.

Each module is one step; `python -m e2e.cluster up` runs them in order. What a step makes is kept by content:
a second run finds it.
"""

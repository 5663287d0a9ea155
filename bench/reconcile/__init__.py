"""What the controller of model caches costs, with a real API server: `python -m bench.reconcile`."""

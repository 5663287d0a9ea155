"""What the router adds to a request, beside Envoy alone, a Go server and a bare handler, in one run.

Only ratios mean something: the figures of one run share a machine, an Envoy, an upstream and a load
generator, and the targets are measured right after each other.
"""

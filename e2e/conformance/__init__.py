"""The conformance suite of the Gateway API Inference Extension, with the router as the Endpoint Picker.

The gateway is Istio with a plain Envoy, in the cluster of `e2e.cluster`. The suite runs unchanged: it deploys
its own manifests, in which the picker's image goes by the name of the reference picker's.
"""

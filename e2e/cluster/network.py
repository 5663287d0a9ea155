"""Pods' network: the CNI plugins ptp and portmap, and routes between the nodes.

kind's own, kindnet, is an image to pull. This does the same with what is in the node image.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from e2e.cluster import kind
from e2e.cluster.command import run

POD_SUBNET = "10.244.0.0/16"
"""kind's default."""
SERVICE_SUBNET = "10.96.0.0/16"
"""kind's default."""


def connect() -> None:
    """Configure every node, and wait until all are Ready. Raises `ClusterError`."""
    nodes = json.loads(kind.kubectl("get", "nodes", "--output=json"))["items"]
    subnets = {node["metadata"]["name"]: node["spec"]["podCIDR"] for node in nodes}
    addresses = {node["metadata"]["name"]: _internal(node) for node in nodes}
    for name, subnet in subnets.items():
        routes = [f"ip route replace {subnets[one]} via {addresses[one]}" for one in subnets if one != name]
        # Replies to what leaves the pods' network have to find back; between pods addresses stay as they are.
        masquerade = f"POSTROUTING -s {POD_SUBNET} ! -d {POD_SUBNET} -j MASQUERADE"
        # A Service address that kube-proxy did not translate (yet) must stay in: some networks answer for any
        # address, and the API server keeps such a connection.
        stray = [f"{chain} --destination {SERVICE_SUBNET} -j REJECT" for chain in ("OUTPUT", "FORWARD")]
        script = [
            "set -e",
            "mkdir -p /etc/cni/net.d",
            f"echo {shlex.quote(json.dumps(_plugins(subnet)))} > /etc/cni/net.d/10-ptp.conflist",
            *routes,
            _once("nat", masquerade),
            *(_once("filter", rule) for rule in stray),
        ]
        run("docker", "exec", name, "sh", "-c", "\n".join(script))
    kind.kubectl("wait", "node", "--all", "--for=condition=Ready", "--timeout=120s")


def _once(table: str, rule: str) -> str:
    return f"iptables -t {table} -C {rule} 2>/dev/null || iptables -t {table} -A {rule}"


def _internal(node: dict[str, Any]) -> str:
    return next(str(one["address"]) for one in node["status"]["addresses"] if one["type"] == "InternalIP")


def _plugins(subnet: str) -> dict[str, Any]:
    return {
        "cniVersion": "0.3.1",
        "name": "ptp",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "mtu": 1500,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-ipam-state",
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "ranges": [[{"subnet": subnet}]],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }

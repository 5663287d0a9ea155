"""Addresses for Services of type LoadBalancer, which a cloud would give and this cluster does not."""

from __future__ import annotations

import ipaddress
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster import kind
from e2e.cluster.command import ClusterError

NETWORK = ipaddress.ip_network("198.18.0.0/24")
"""Kept for tests within a network (RFC 2544, appendix C.2.2). On the nodes kube-proxy answers for them."""


@contextmanager
def given(every: float = 1.0) -> Iterator[None]:
    """Give each such Service a free address while the block runs, looking `every` so many seconds.

    Raises the last `ClusterError` at the end if none could be given.
    """
    over = threading.Event()
    failure: list[ClusterError] = []

    def keep_giving() -> None:
        while not over.wait(every):
            failure.clear()
            try:
                give()
            except ClusterError as error:
                failure.append(error)

    giver = threading.Thread(target=keep_giving, name="addresses")
    giver.start()
    try:
        yield
    finally:
        over.set()
        giver.join()
    if failure:
        raise failure[0]


def give() -> None:
    """Give an address to each Service that waits for one. Raises `ClusterError`."""
    said = kind.kubectl("get", "services", "--all-namespaces", "--output=json", seconds=30)
    services = [one for one in json.loads(said)["items"] if one["spec"]["type"] == "LoadBalancer"]
    held = {one["metadata"]["uid"]: one["status"]["loadBalancer"].get("ingress", []) for one in services}
    taken = {entry["ip"] for ingress in held.values() for entry in ingress if "ip" in entry}
    free = (str(one) for one in NETWORK.hosts() if str(one) not in taken)
    for service in services:
        if not held[service["metadata"]["uid"]]:
            status = {"status": {"loadBalancer": {"ingress": [{"ip": next(free)}]}}}
            name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
            kind.kubectl(
                *("patch", f"service/{name}", f"--namespace={namespace}", "--subresource=status"),
                f"--patch={json.dumps(status)}",
                seconds=30,
            )

"""Attachments with which nothing is wrong: what manifests/ has, as a cluster shows it once taken up."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from extproc.config import parse
from extproc.doctor.access import needed
from extproc.doctor.diagnosis import Evidence
from extproc.doctor.inventory import Inventory, Pods, Reference

MANIFESTS = Path(__file__).parents[2] / "manifests"
GATEWAY = MANIFESTS / "gateways" / "envoy-gateway"
POOL = MANIFESTS / "gateways" / "inference-pool"
CONFIG = (MANIFESTS / "base" / "router" / "extproc.yaml").read_text()

Object = dict[str, Any]
"""One object of Kubernetes."""


class Scene:
    """Everything that the doctor is shown, to be spoilt by a test."""

    def __init__(self, objects: list[Object], config: str, service: str) -> None:
        self.objects = objects
        self.config: str | None = config
        namespace, name = service.split("/")
        self.service = Reference(namespace, name)
        self.pods: dict[Pods, list[Object]] = {}

    def the(self, kind: str, name: str) -> Object:
        """The only object of this kind and name."""
        (found,) = [one for one in self.objects if one["kind"] == kind and one["metadata"]["name"] == name]
        return found

    def remove(self, kind: str, name: str) -> None:
        self.objects.remove(self.the(kind, name))

    def evidence(self, denied: Callable[[str], bool] = lambda _resource: False) -> Evidence:
        """`denied` says of a resource whether the router's ServiceAccount may not list and watch it."""
        config = None if self.config is None else parse(self.config, "extproc.yaml")
        kinds = {one["kind"] for one in self.objects}
        rights = {} if config is None else needed(config, self.service.namespace)
        return Evidence(
            self.service,
            Reference(self.service.namespace, "extproc"),
            config,
            Inventory(
                {kind: [one for one in self.objects if one["kind"] == kind] for kind in kinds}, self.pods
            ),
            {right: not denied(right.resource) for right in rights},
        )


def behind_an_http_route() -> Scene:
    """manifests/gateways/envoy-gateway with its example, and two engines."""
    objects = [
        *_objects(GATEWAY, "extension-policy", "backend-traffic-policy", "client-traffic-policy"),
        *_objects(GATEWAY, "reference-grant", "example/gateway"),
        *_objects(MANIFESTS / "base" / "router", "services"),
        _service("llm", 8000),
        slice_of("warmroute", "extproc", {"grpc": 9002}, 2),
        slice_of("llm", "llm", {"": 8000}, 2),
    ]
    for one in objects:
        if one["kind"].endswith("Policy"):
            one["status"] = {"ancestors": [accepted()]}
    return Scene(objects, CONFIG, "warmroute/extproc")


def behind_an_inference_pool() -> Scene:
    """manifests/gateways/inference-pool, and two engines."""
    router, *_ = _objects(MANIFESTS / "base" / "router", "services")
    router["metadata"]["namespace"] = "llm"
    router["spec"]["ports"][0]["appProtocol"] = "http2"
    (pool,) = _objects(POOL, "inference-pool")
    pool["status"] = {"parents": [accepted()]}
    objects = [router, pool, slice_of("llm", "extproc", {"grpc": 9002}, 2)]
    scene = Scene(objects, (POOL / "extproc.yaml").read_text(), "llm/extproc")
    scene.pods = {Pods("llm", "app=llm"): [pod("llm-1"), pod("llm-2")]}
    return scene


def behind_istio() -> Scene:
    """manifests/gateways/inference-pool with its example."""
    scene = behind_an_inference_pool()
    scene.objects += [
        *_objects(POOL, "example/gateway", "example/destination-rule"),
        {
            "kind": "GatewayClass",
            "metadata": {"name": "istio"},
            "spec": {"controllerName": "istio.io/gateway-controller"},
        },
    ]
    return scene


def accepted(status: str = "True", message: str = "accepted") -> Object:
    """What a gateway says of a policy."""
    return {
        "conditions": [
            {"type": kind, "status": status, "reason": "Said", "message": message}
            for kind in ("Accepted", "ResolvedRefs")
        ]
    }


def slice_of(
    namespace: str, service: str, ports: dict[str, int], count: int, *, ready: bool = True
) -> Object:
    """An EndpointSlice with so many endpoints."""
    return {
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": namespace,
            "name": f"{service}-1",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "ports": [{"name": name, "port": port} for name, port in ports.items()],
        "endpoints": [
            {"addresses": [f"10.0.0.{n}"], "conditions": {"ready": ready}} for n in range(1, count + 1)
        ],
    }


def pod(name: str, *, ready: bool = True) -> Object:
    """An engine's pod."""
    return {
        "kind": "Pod",
        "metadata": {"namespace": "llm", "name": name, "uid": name, "labels": {"app": "llm"}},
        "status": {
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def _service(name: str, port: int) -> Object:
    return {
        "kind": "Service",
        "metadata": {"namespace": "llm", "name": name},
        "spec": {"ports": [{"port": port}]},
    }


def _objects(directory: Path, *names: str) -> list[Object]:
    return [
        copy.deepcopy(one)
        for name in names
        for one in yaml.safe_load_all((directory / f"{name}.yaml").read_text())
    ]

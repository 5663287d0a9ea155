"""What manifests/ says of the router agrees with itself and with the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc import __version__
from extproc.config import Config, load
from extproc.doctor.access import needed
from extproc.endpoint_picker import Flags, settings
from extproc.run import DRAIN_DELAY

MANIFESTS = Path(__file__).parents[2] / "manifests"
ROUTER = MANIFESTS / "base" / "router"
POOL = MANIFESTS / "gateways" / "inference-pool"


def read(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.fixture
def config() -> Config:
    return load(ROUTER / "extproc.yaml")


@pytest.fixture
def pod() -> dict[str, Any]:
    (deployment,) = read(ROUTER / "deployment.yaml")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("directory", [ROUTER, MANIFESTS / "doctor"], ids=["router", "doctor"])
def test_the_image_is_of_this_version(directory: Path) -> None:
    (kustomization,) = read(directory / "kustomization.yaml")
    assert kustomization["images"] == [{"name": "warmroute/extproc", "newTag": __version__}]


def test_the_ports_are_those_on_which_the_router_listens(config: Config, pod: dict[str, Any]) -> None:
    assert config.health is not None
    assert config.metrics is not None
    assert config.sharing is not None
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {
        "grpc": config.listen.port,
        "health": config.health.port,
        "metrics": config.metrics.port,
        "sharing": config.sharing.listen.port,
    }
    for service in read(ROUTER / "services.yaml"):
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]


def test_replicas_find_each_other_by_the_service_that_stands_for_all(config: Config) -> None:
    _, replicas = read(ROUTER / "services.yaml")
    assert config.sharing is not None
    assert config.sharing.service is not None
    name, namespace = replicas["metadata"]["name"], replicas["metadata"]["namespace"]
    assert config.sharing.service.host == f"{name}.{namespace}.svc"
    assert replicas["spec"]["clusterIP"] == "None"


def test_a_pod_has_time_to_drain(config: Config, pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    leaving = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert leaving > DRAIN_DELAY
    assert leaving + config.drain_timeout < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("flavour", ["a Service", "an InferencePool"])
def test_the_router_may_do_what_it_needs_and_no_more(config: Config, flavour: str) -> None:
    path = MANIFESTS / "base" / "engine-access" / "role.yaml"
    namespace = "warmroute"
    if flavour == "an InferencePool":
        path, namespace, config = POOL / "role.yaml", "llm", as_picker()
    role, binding = read(path)
    granted = {
        (verb, group, resource, role["metadata"]["namespace"], name)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }
    assert granted == set(needed(config, namespace))
    (subject,) = binding["subjects"]
    assert (subject["kind"], subject["namespace"], subject["name"]) == (
        "ServiceAccount",
        namespace,
        "extproc",
    )


def test_as_a_picker_the_router_listens_where_its_service_looks() -> None:
    config = as_picker()
    assert config.tls is not None
    assert config.tls.self_signed
    assert (config.listen.port, config.health and config.health.port) == (9002, 9003)
    assert config.metrics is not None
    assert config.metrics.port == 9090


def test_pickers_share_in_plaintext_since_their_certificates_prove_nothing_to_each_other() -> None:
    sharing = as_picker().sharing
    assert sharing is not None
    assert sharing.plaintext
    _, replicas = read(ROUTER / "services.yaml")
    # Without a namespace: that of the pool, whatever it is called.
    assert sharing.service is not None
    assert sharing.service.host == replicas["metadata"]["name"]


def as_picker() -> Config:
    """What `extproc epp` runs with the arguments of the overlay."""
    return settings(Flags(), load(POOL / "extproc.yaml"))

"""The Endpoint Pickers that the suite can run with, each under the image name that its manifests ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from e2e.cluster import golang, images, kind, versions
from e2e.cluster.command import run
from images.build import EXTPROC

MODULE = "sigs.k8s.io/gateway-api-inference-extension"
REFERENCE = golang.Program(f"{MODULE}/cmd/epp", versions.INFERENCE_EXTENSION, module=MODULE)
ECHO = golang.Program(
    "sigs.k8s.io/gateway-api/conformance/echo-basic",
    versions.GATEWAY_API_OF_SUITE,
    module="sigs.k8s.io/gateway-api",
)
_DOCKERFILE = Path(__file__).parent / "dockerfiles" / "picker.Dockerfile"


def extproc() -> str:
    """The image of the router as a picker. Raises `ClusterError`."""
    return images.build("picker", _DOCKERFILE, arguments={"BASE": EXTPROC.reference})


def reference() -> str:
    """The image of the reference picker. Raises `ClusterError` or `golang.BuildError`."""
    return images.program(golang.program(REFERENCE))


def echo() -> str:
    """The image of the suite's backends. Raises `ClusterError` or `golang.BuildError`."""
    return images.program(golang.program(ECHO))


PICKERS: dict[str, Callable[[], str]] = {"extproc": extproc, "reference": reference}
"""By name: what builds its image."""


def put(picker: str) -> None:
    """Have the images of the suite's manifests mean this picker and the echo server.

    Raises `ClusterError` or `golang.BuildError`.
    """
    meant = {"epp": PICKERS[picker](), "echoserver": echo()}
    wanted = asked_for(manifests() / "base.yaml")
    for container, reference in wanted.items():
        run("docker", "tag", meant[container.split("-")[0]], reference)
    # No other node runs them: they do not tolerate the workers' taint.
    images.load(sorted(set(wanted.values())), [kind.CONTROL_PLANE])


def manifests() -> Path:
    """The directory of the suite's base manifests. Raises `golang.BuildError`."""
    return golang.source(MODULE, versions.INFERENCE_EXTENSION) / "conformance/resources"


def asked_for(manifest: Path) -> dict[str, str]:
    """The images that a file of manifests asks for, by the names of their containers."""
    return {
        container["name"]: container["image"]
        for one in yaml.safe_load_all(manifest.read_text())
        if one and one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
    }


def by_pool(manifest: Path) -> dict[str, tuple[str, str]]:
    """The Services that the InferencePools of a file name as their pickers: pool to (namespace, name)."""
    return {
        one["metadata"]["name"]: (one["metadata"]["namespace"], one["spec"]["endpointPickerRef"]["name"])
        for one in yaml.safe_load_all(manifest.read_text())
        if one and one["kind"] == "InferencePool"
    }

"""What manifests/ has is taken by a real API server that knows the gateways' kinds, without a warning."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from extproc.config import parse
from tests.apiserver.attachment.kubectl import ROOT, Kubectl
from tests.apiserver.attachment.pages import kustomization

MANIFESTS = ROOT / "manifests"
OVERLAYS = sorted(str(one.parent.relative_to(MANIFESTS)) for one in MANIFESTS.rglob("kustomization.yaml"))
COMPONENTS = [one for one in OVERLAYS if one.startswith("components/")]
PAGES = ["attach-envoy-gateway", "attach-inference-pool"]


@pytest.mark.parametrize("overlay", [one for one in OVERLAYS if one not in COMPONENTS])
def test_every_object_of_an_overlay_is_accepted(kubectl: Kubectl, overlay: str) -> None:
    kubectl("apply", "--dry-run=server", "-k", str(MANIFESTS / overlay))


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_can_be_added_to_the_router(kubectl: Kubectl, component: str, tmp_path: Path) -> None:
    router, added = (os.path.relpath(MANIFESTS / one, tmp_path) for one in ("base/router", component))
    (tmp_path / "kustomization.yaml").write_text(f"resources: [{router}]\ncomponents: [{added}]\n")
    kubectl("apply", "--dry-run=server", "-k", str(tmp_path))


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_to_write_for_other_names_is_accepted(
    kubectl: Kubectl, page: str, tmp_path: Path
) -> None:
    kustomization(page, tmp_path)
    kubectl.namespace("my-engines")
    kubectl("apply", "--dry-run=server", "-k", str(tmp_path))
    said = json.dumps(kubectl.objects(tmp_path))
    assert '"namespace": "llm"' not in said


@pytest.mark.parametrize(
    "overlay", ["base/router", "gateways/inference-pool", "gateways/plain-envoy", "doctor"]
)
def test_every_pod_fits_the_restricted_pod_security_standard(kubectl: Kubectl, overlay: str) -> None:
    made = kubectl.objects(MANIFESTS / overlay)
    templates = [one["spec"]["template"] for one in made if one["kind"] in ("Deployment", "Job")]
    assert templates
    for template in templates:
        kubectl("create", "--dry-run=server", "-f", "-", stdin=_pod(template["spec"]))
        del template["spec"]["securityContext"]
        refused = kubectl.attempt("create", "--dry-run=server", "-f", "-", stdin=_pod(template["spec"]))
        assert 'violates PodSecurity "restricted' in refused.stderr


def test_replicas_of_a_picker_alone_may_call_the_port_on_which_they_share(kubectl: Kubectl) -> None:
    made = kubectl.objects(MANIFESTS / "gateways" / "inference-pool")
    (replicas,) = [one for one in made if one.get("spec", {}).get("clusterIP") == "None"]
    (deployment,) = [one for one in made if one["kind"] == "Deployment"]
    (settings,) = [one for one in made if one["kind"] == "ConfigMap"]
    sharing = parse(settings["data"]["extproc.yaml"], "extproc.yaml").sharing
    assert sharing is not None
    assert sharing.service is not None
    assert replicas["metadata"]["name"] == sharing.service.host
    assert replicas["metadata"]["namespace"] == deployment["metadata"]["namespace"]
    (port,) = replicas["spec"]["ports"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert port["port"] == sharing.listen.port
    assert {"name": port["targetPort"], "containerPort": port["port"]} in container["ports"]
    pods = {"matchLabels": replicas["spec"]["selector"]}
    assert deployment["spec"]["selector"] == pods
    policies = [one["spec"] for one in made if one["kind"] == "NetworkPolicy"]
    assert [policy["podSelector"] for policy in policies] == [pods, pods]
    admitted = [
        rule.get("from")
        for policy in policies
        for rule in policy["ingress"]
        if any(one["port"] == port["port"] for one in rule["ports"])
    ]
    assert admitted == [[{"podSelector": pods}]]


def test_engines_in_another_namespace_are_opened_to_the_same_router(kubectl: Kubectl, tmp_path: Path) -> None:
    access = os.path.relpath(MANIFESTS / "base" / "engine-access", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(f"namespace: my-engines\nresources: [{access}]\n")
    binding, role = sorted(kubectl.objects(tmp_path), key=lambda one: one["kind"] == "Role")
    assert binding["metadata"]["namespace"] == role["metadata"]["namespace"] == "my-engines"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "extproc", "namespace": "warmroute"}]


def _pod(spec: object) -> str:
    metadata = {"name": "one", "namespace": "warmroute"}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

"""`extproc doctor` against a real API server: manifests/ applied as users do, then spoilt."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kubernetes_asyncio import client as api

from extproc.commands.doctor import command
from tests.apiserver import cluster
from tests.apiserver.attachment.kubectl import ROOT, Kubectl
from tests.apiserver.attachment.pages import command as page_command
from tests.apiserver.attachment.pages import kustomization
from tests.apiserver.cluster import PICKER, ApiServer

GATEWAY = ROOT / "manifests" / "gateways" / "envoy-gateway"
POLICIES = ("envoyextensionpolicy", "backendtrafficpolicy", "clienttrafficpolicy")

ENGINES = """
apiVersion: v1
kind: Service
metadata: {name: llm, namespace: llm}
spec:
  selector: {app: llm}
  ports: [{port: 8000}]
"""

POOL_OF_NOTHING = """
maxMessageBytes: 20000000
pools: [{name: llm, endpoints: {service: {name: gone, namespace: llm, port: 8000}}}]
"""

MY_POOL = """
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: my-pool, namespace: my-engines}
spec:
  selector: {matchLabels: {app: my-engine}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: another, port: {number: 9002}}
---
apiVersion: v1
kind: Pod
metadata: {name: my-engine, namespace: my-engines, labels: {app: my-engine}}
spec:
  nodeName: node-1
  containers: [{name: vllm, image: vllm}]
"""


@pytest.fixture(scope="module")
def attached(kubectl: Kubectl) -> Kubectl:
    """The router behind an HTTPRoute; this is who says what controllers and kubelets would."""
    kubectl("apply", "-f", "-", stdin=ENGINES)
    kubectl("apply", "-k", str(GATEWAY))
    kubectl("apply", "-k", str(GATEWAY / "example"))
    for policy in POLICIES:
        _accept(kubectl, policy)
    kubectl("apply", "-f", "-", stdin=_slice("warmroute", "extproc", "grpc", 9002))
    kubectl("apply", "-f", "-", stdin=_slice("llm", "llm", "", 8000))
    return kubectl


@pytest.fixture
def doctor(attached: Kubectl, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Any]]]:
    """The command's exit code and what it prints as JSON."""

    def run(*arguments: str, kubeconfig: Path | None = None) -> tuple[int, dict[str, Any]]:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig or attached.kubeconfig))
        result = CliRunner().invoke(command, ["--json", *arguments])
        assert result.exit_code in (0, 1), result.output
        return result.exit_code, json.loads(result.stdout)

    return run


Doctor = Callable[..., tuple[int, dict[str, Any]]]


def names(said: dict[str, Any]) -> list[str]:
    return [finding["name"] for finding in said["findings"]]


def test_with_manifests_applied_nothing_is_wrong(doctor: Doctor) -> None:
    code, said = doctor()
    assert said == {"service": "warmroute/extproc", "attached": ["HTTPRoute llm/llm"], "findings": []}
    assert code == 0


def test_people_get_text_with_the_same_exit_code(attached: Kubectl) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).with_name("extproc")), "doctor"],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env={"KUBECONFIG": str(attached.kubeconfig)},
        )

    sound = run()
    assert (sound.returncode, sound.stderr) == (0, "")
    assert "is asked by HTTPRoute llm/llm" in sound.stdout
    assert "nothing wrong was found" in sound.stdout
    with changed(attached, "clienttrafficpolicy", "llm", [{"op": "remove", "path": "/spec/headers"}]):
        spoilt = run()
    assert (spoilt.returncode, spoilt.stderr) == (1, "")
    assert "error    ClientTrafficPolicy llm/extproc: pin-not-stripped" in spoilt.stdout
    assert "1 error, 0 warnings" in spoilt.stdout


@pytest.mark.parametrize(
    ("kind", "namespace", "patch", "name"),
    [
        (
            "envoyextensionpolicy",
            "llm",
            [{"op": "replace", "path": "/spec/extProc/0/processingMode/request/body", "value": "Streamed"}],
            "body-mode",
        ),
        (
            "backendtrafficpolicy",
            "llm",
            [{"op": "remove", "path": "/spec/loadBalancer/endpointOverride"}],
            "no-endpoint-override",
        ),
        (
            "clienttrafficpolicy",
            "llm",
            [{"op": "replace", "path": "/spec/connection/bufferLimit", "value": "64Ki"}],
            "buffer-small",
        ),
        ("role", "llm", [{"op": "replace", "path": "/rules/0/verbs", "value": ["list"]}], "not-allowed"),
        (
            "service",
            "warmroute",
            [{"op": "remove", "path": "/spec/ports/0/appProtocol"}],
            "app-protocol",
        ),
        (
            "configmap",
            "warmroute",
            [
                {
                    "op": "replace",
                    "path": "/data/extproc.yaml",
                    "value": POOL_OF_NOTHING,
                }
            ],
            "pool-names-nothing",
        ),
        (
            "configmap",
            "warmroute",
            [{"op": "replace", "path": "/data/extproc.yaml", "value": "pool: []\n"}],
            "configuration",
        ),
        (
            "configmap",
            "warmroute",
            [{"op": "replace", "path": "/data", "value": {"other.yaml": ""}}],
            "no-configuration",
        ),
        (
            "referencegrant",
            "warmroute",
            [{"op": "replace", "path": "/spec/from/0/namespace", "value": "other"}],
            "no-reference-grant",
        ),
    ],
)
def test_what_is_spoilt_is_named(
    attached: Kubectl, doctor: Doctor, kind: str, namespace: str, patch: list[Any], name: str
) -> None:
    with changed(attached, kind, namespace, patch):
        _, said = doctor()
        assert name in names(said)
        strict, _ = doctor("--strict")
        assert strict == 1
    assert doctor()[0] == 0


def test_what_the_gateway_says_of_a_policy_is_told(attached: Kubectl, doctor: Doctor) -> None:
    _accept(attached, "envoyextensionpolicy", refused="Service warmroute/extproc has no port 9001")
    try:
        code, said = doctor()
    finally:
        _accept(attached, "envoyextensionpolicy")
    (finding,) = said["findings"]
    assert (code, finding["name"], finding["object"]) == (
        1,
        "not-accepted",
        "EnvoyExtensionPolicy llm/extproc",
    )
    assert "has no port 9001" in finding["what"]


def test_without_ready_pods_the_router_and_its_pool_are_told(attached: Kubectl, doctor: Doctor) -> None:
    off = [{"op": "replace", "path": "/endpoints/0/conditions/ready", "value": False}]
    with changed(attached, "endpointslice", "warmroute", off, name="extproc-1"):
        assert names(doctor()[1]) == ["no-ready-endpoints"]
    with changed(attached, "endpointslice", "llm", off, name="llm-1"):
        assert names(doctor()[1]) == ["pool-without-endpoints"]


def test_settings_may_be_given_as_a_file(doctor: Doctor, tmp_path: Path) -> None:
    file = tmp_path / "extproc.yaml"
    file.write_text(POOL_OF_NOTHING)
    assert "pool-names-nothing" in names(doctor("--config", str(file))[1])


def test_who_may_read_nothing_is_told_what_was_not_checked_and_nothing_else(
    server: ApiServer, doctor: Doctor
) -> None:
    code, said = doctor(kubeconfig=server.kubeconfig(PICKER))
    assert code == 1
    assert set(names(said)) == {"cannot-look"}
    assert any("may not list envoyextensionpolicies" in finding["what"] for finding in said["findings"])


async def test_the_router_s_own_account_may_do_what_it_uses_and_no_more(
    server: ApiServer, attached: Kubectl
) -> None:
    async with cluster.admin(server) as client:
        client.set_default_header("Impersonate-User", "system:serviceaccount:warmroute:extproc")
        client.set_default_header("Impersonate-Group", "system:authenticated")
        review = await api.AuthorizationV1Api(client).create_self_subject_rules_review(
            {"spec": {"namespace": "llm"}}
        )
    rules = [
        (rule.api_groups, rule.resources, rule.verbs)
        for rule in review.status.resource_rules
        # What everybody may: ask what one may.
        if not any(resource.startswith("selfsubject") for resource in rule.resources)
    ]
    assert rules == [(["discovery.k8s.io"], ["endpointslices"], ["list", "watch"])]


def test_the_router_s_own_account_can_ask_for_itself(
    server: ApiServer, attached: Kubectl, doctor: Doctor, tmp_path: Path
) -> None:
    """In the router's pod nothing but its own rights can be looked at; they can without a right to ask."""
    own = _as(server, "extproc", tmp_path)
    role = [{"op": "replace", "path": "/rules/0/verbs", "value": ["list"]}]
    file = ROOT / "manifests" / "base" / "router" / "extproc.yaml"
    with changed(attached, "role", "llm", role):
        _, said = doctor("--config", str(file), kubeconfig=own)
    assert "not-allowed" in names(said)
    assert not any("subjectaccessreviews" in finding["what"] for finding in said["findings"])


def test_the_rights_of_manifests_doctor_suffice(
    server: ApiServer, attached: Kubectl, doctor: Doctor, tmp_path: Path
) -> None:
    attached("apply", "-k", str(ROOT / "manifests" / "doctor"))
    code, said = doctor(kubeconfig=_as(server, "extproc-doctor", tmp_path))
    assert (code, said["findings"]) == (0, [])


def test_an_inference_pool_of_one_s_own_is_attached_as_its_page_says(
    kubectl: Kubectl, doctor: Doctor, tmp_path: Path
) -> None:
    """It had another picker; its engine is ready."""
    kubectl.namespace("my-engines")
    kubectl("apply", "-f", "-", stdin=MY_POOL)
    _accept(kubectl, "inferencepool", "my-pool", "my-engines", "parents")
    ready = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    _status(kubectl, "pod", "my-engine", "my-engines", ready)
    kustomization("attach-inference-pool", tmp_path)
    kubectl("apply", "-k", str(tmp_path))
    kubectl("apply", "-f", "-", stdin=_slice("my-engines", "extproc", "grpc", 9002))
    assert names(doctor("--namespace", "my-engines")[1]) == ["not-attached"]

    _, *patch = page_command("attach-inference-pool", "kubectl patch inferencepool my-pool")
    kubectl(*patch)
    code, said = doctor("--namespace", "my-engines")
    assert (code, said["attached"], said["findings"]) == (0, ["InferencePool my-engines/my-pool"], [])


def test_an_api_server_that_does_not_answer_is_exit_code_2(
    attached: Kubectl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    away = tmp_path / "kubeconfig"
    text = attached.kubeconfig.read_text()
    away.write_text(
        "\n".join(
            line if "server:" not in line else "    server: https://127.0.0.1:1" for line in text.splitlines()
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(away))
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 2
    assert "127.0.0.1:1" in result.stderr


def _as(server: ApiServer, account: str, directory: Path) -> Path:
    """A kubeconfig for a ServiceAccount of the router's namespace."""

    async def token() -> str:
        async with cluster.admin(server) as client:
            made = await api.CoreV1Api(client).create_namespaced_service_account_token(
                account, "warmroute", {"spec": {"audiences": ["https://test"]}}
            )
        issued: str = made.status.token
        return issued

    path = directory / account
    path.write_text(server.kubeconfig(PICKER).read_text().replace(PICKER, asyncio.run(token())))
    return path


@contextmanager
def changed(
    kubectl: Kubectl, kind: str, namespace: str, patch: list[Any], name: str = "extproc"
) -> Iterator[None]:
    """An object as a patch makes it, and then as it was."""
    before = json.loads(kubectl("get", kind, name, "-n", namespace, "-o", "json"))
    kubectl("patch", kind, name, "-n", namespace, "--type=json", "-p", json.dumps(patch))
    try:
        yield
    finally:
        for key in ("resourceVersion", "managedFields", "uid", "creationTimestamp", "generation"):
            before["metadata"].pop(key, None)
        kubectl("replace", "-f", "-", stdin=json.dumps(before))


def _accept(
    kubectl: Kubectl,
    kind: str,
    name: str = "extproc",
    namespace: str = "llm",
    field: str = "ancestors",
    *,
    refused: str = "",
) -> None:
    """Say of an object what a gateway's controller would: that it is taken, or why it is refused."""
    condition = {
        "type": "Accepted",
        "status": "False" if refused else "True",
        "reason": "Invalid" if refused else "Accepted",
        "message": refused or "accepted",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    reference = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "llm"}
    said = {
        "ancestorRef" if field == "ancestors" else "parentRef": reference,
        "controllerName": "gateway.envoyproxy.io/gatewayclass-controller",
        "conditions": [condition],
    }
    _status(kubectl, kind, name, namespace, {field: [said]})


def _status(kubectl: Kubectl, kind: str, name: str, namespace: str, status: object) -> None:
    patch = json.dumps({"status": status})
    words = ("--subresource=status", "--type=merge", "-p", patch)
    kubectl("patch", kind, name, "-n", namespace, *words)


def _slice(namespace: str, service: str, port: str, number: int) -> str:
    return json.dumps(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{service}-1",
                "namespace": namespace,
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4",
            "ports": [{"name": port, "port": number, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
        }
    )

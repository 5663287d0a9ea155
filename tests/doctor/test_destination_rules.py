"""Istio speaks TLS with a pool's picker where a DestinationRule says so, and which rule that is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extproc.doctor.diagnosis import diagnose
from extproc.doctor.findings import Finding, Severity
from tests.doctor import sound
from tests.doctor.sound import Object, Scene

TLS = {"mode": "SIMPLE", "insecureSkipVerify": True}
FQDN = "extproc.llm.svc.cluster.local"


@pytest.fixture
def scene() -> Scene:
    return sound.behind_istio()


def found(scene: Scene) -> list[Finding]:
    return diagnose(scene.evidence())


def names(scene: Scene) -> list[str]:
    return [finding.name for finding in found(scene)]


def rule(scene: Scene) -> Object:
    """The spec of the example's."""
    spec: Object = scene.the("DestinationRule", "extproc")["spec"]
    return spec


def another(
    scene: Scene, namespace: str, tls: Object | None = TLS, *, host: str = FQDN, **spec: object
) -> None:
    """A second rule, younger than the example's own."""
    policy = {} if tls is None else {"trafficPolicy": {"tls": tls}}
    scene.objects.append(
        {
            "kind": "DestinationRule",
            "metadata": {
                "namespace": namespace,
                "name": f"another-{len(scene.objects)}",
                "creationTimestamp": "2025-01-01T00:00:00Z",
            },
            "spec": {"host": host, **policy, **spec},
        }
    )


def test_with_the_example_for_istio_nothing_is_wrong(scene: Scene) -> None:
    assert found(scene) == []


def test_without_a_rule_every_request_fails_and_the_one_to_create_is_shown(scene: Scene) -> None:
    scene.remove("DestinationRule", "extproc")
    (finding,) = found(scene)
    assert finding[:3] == ("no-tls-to-picker", Severity.ERROR, "InferencePool llm/llm")
    assert "Gateway llm/llm is Istio's, and no DestinationRule is for Service llm/extproc" in finding.what
    assert "whatever failureMode says" in finding.what
    assert finding.remedy == (
        "create a DestinationRule in namespace llm with host: extproc.llm.svc.cluster.local and"
        " trafficPolicy.tls: {mode: SIMPLE, insecureSkipVerify: true}"
    )


@pytest.mark.parametrize(
    "policy",
    [
        None,
        {},
        {"tls": {}},
        {"tls": {"mode": "DISABLE"}},
        {"tls": TLS, "portLevelSettings": [{"port": {"number": 9002}}]},
        {"portLevelSettings": [{"port": {"number": 9003}, "tls": TLS}]},
    ],
)
def test_a_rule_that_says_no_tls_for_the_picker_s_port_is_named(scene: Scene, policy: Object | None) -> None:
    rule(scene)["trafficPolicy"] = policy
    (finding,) = found(scene)
    assert finding.name == "no-tls-to-picker"
    assert "DestinationRule llm/extproc sets no TLS for port 9002" in finding.what
    assert finding.remedy == "set tls: {mode: SIMPLE, insecureSkipVerify: true} there"


def test_a_rule_may_say_it_of_the_picker_s_port_alone(scene: Scene) -> None:
    rule(scene)["trafficPolicy"] = {"portLevelSettings": [{"port": {"number": 9002}, "tls": TLS}]}
    assert found(scene) == []


def test_a_rule_that_verifies_what_nobody_issued_is_told(scene: Scene) -> None:
    rule(scene)["trafficPolicy"]["tls"] = {"mode": "SIMPLE"}
    (finding,) = found(scene)
    assert finding[:3] == ("picker-not-trusted", Severity.ERROR, "InferencePool llm/llm")
    assert finding.remedy == "set tls: {mode: SIMPLE, insecureSkipVerify: true} there"
    # An authority may have issued the router's certificate: then its command line says where that is.
    rule(scene)["trafficPolicy"]["tls"]["credentialName"] = "authority"
    assert found(scene) == []


@pytest.mark.parametrize(
    ("tls", "wanted"),
    [
        ("{cert: c, key: k}", "{mode: SIMPLE, credentialName: …} with the authority"),
        ("{cert: c, key: k, clientCa: a}", "{mode: MUTUAL, credentialName: …} with a certificate"),
    ],
)
def test_with_a_certificate_that_somebody_issued_the_remedy_has_it_verified(
    scene: Scene, tls: str, wanted: str
) -> None:
    assert scene.config is not None
    scene.config += f"tls: {tls}\n"
    scene.remove("DestinationRule", "extproc")
    (finding,) = found(scene)
    assert wanted in finding.remedy


@pytest.mark.parametrize(
    "host",
    [
        FQDN,
        "extproc",
        "*.llm.svc.cluster.local",
        "*.svc.cluster.local",
        "*.local",
        "*",
        "extproc.llm.svc.corp.example",
        "*.llm.svc.corp.example",
        "*.svc.corp.example",
    ],
)
def test_a_host_may_be_written_in_each_way_that_istio_reads(scene: Scene, host: str) -> None:
    rule(scene)["host"] = host
    assert found(scene) == []


@pytest.mark.parametrize(
    "host",
    [
        "extproc.llm",
        "extproc.llm.svc",
        "other",
        "*.other.svc.cluster.local",
        "*.other.svc.x",
        "extproc.other.svc.x",
    ],
)
def test_a_rule_for_another_host_is_none_for_the_picker(scene: Scene, host: str) -> None:
    rule(scene)["host"] = host
    assert names(scene) == ["no-tls-to-picker"]


def test_a_short_host_is_one_of_the_rule_s_own_namespace(scene: Scene) -> None:
    scene.remove("DestinationRule", "extproc")
    another(scene, "istio-system", host="extproc")
    assert names(scene) == ["no-tls-to-picker"]


def test_the_gateway_s_namespace_goes_before_the_service_s_and_that_before_the_root(scene: Scene) -> None:
    scene.the("Gateway", "llm")["metadata"]["namespace"] = "edge"
    scene.the("HTTPRoute", "llm")["spec"]["parentRefs"] = [{"name": "llm", "namespace": "edge"}]
    another(scene, "istio-system", None)
    assert found(scene) == []
    another(scene, "edge", None)
    assert names(scene) == ["no-tls-to-picker"]


def test_a_rule_of_the_root_namespace_holds_where_no_other_does(scene: Scene) -> None:
    scene.remove("DestinationRule", "extproc")
    another(scene, "istio-system")
    assert found(scene) == []


def test_for_a_gateway_in_the_root_namespace_the_service_s_rule_goes_before_one_for_all(scene: Scene) -> None:
    scene.the("Gateway", "llm")["metadata"]["namespace"] = "istio-system"
    scene.the("HTTPRoute", "llm")["spec"]["parentRefs"] = [{"name": "llm", "namespace": "istio-system"}]
    another(scene, "istio-system", {"mode": "DISABLE"}, host="*.local")
    assert found(scene) == []


def test_the_most_specific_host_holds_and_of_two_for_one_host_the_older(scene: Scene) -> None:
    another(scene, "llm", {"mode": "DISABLE"}, host="*.llm.svc.cluster.local")
    assert found(scene) == []
    another(scene, "llm", {"mode": "DISABLE"})
    assert found(scene) == []
    scene.the("DestinationRule", "extproc")["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    assert names(scene) == ["no-tls-to-picker"]


def test_a_rule_of_subsets_alone_leaves_the_policy_to_the_next_for_its_host(scene: Scene) -> None:
    scene.the("DestinationRule", "extproc")["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    another(scene, "llm", None, subsets=[{"name": "blue"}])
    assert found(scene) == []


@pytest.mark.parametrize(
    ("spec", "reaches"),
    [
        ({"exportTo": ["*"]}, True),
        ({"exportTo": ["edge"]}, True),
        ({"exportTo": ["."]}, False),
        ({"exportTo": ["other"]}, False),
        ({"workloadSelector": {"matchLabels": {"app": "x"}}}, False),
    ],
)
def test_a_rule_reaches_a_gateway_of_another_namespace_if_it_is_exported_there(
    scene: Scene, spec: Object, reaches: bool
) -> None:
    scene.the("Gateway", "llm")["metadata"]["namespace"] = "edge"
    scene.the("HTTPRoute", "llm")["spec"]["parentRefs"] = [{"name": "llm", "namespace": "edge"}]
    rule(scene).update(spec)
    assert names(scene) == ([] if reaches else ["no-tls-to-picker"])


def test_a_backend_tls_policy_for_the_picker_is_as_good_as_a_rule(scene: Scene) -> None:
    scene.remove("DestinationRule", "extproc")
    policy: Object = {
        "kind": "BackendTLSPolicy",
        "metadata": {"namespace": "llm", "name": "extproc"},
        "spec": {"targetRefs": [{"group": "", "kind": "Service", "name": "other"}]},
    }
    scene.objects.append(policy)
    assert names(scene) == ["no-tls-to-picker"]
    policy["spec"]["targetRefs"][0]["name"] = "extproc"
    assert found(scene) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda scene: scene.remove("HTTPRoute", "llm"),
        lambda scene: scene.the("HTTPRoute", "llm")["spec"]["rules"][0]["backendRefs"][0].update(
            name="other"
        ),
        lambda scene: scene.remove("Gateway", "llm"),
        lambda scene: scene.remove("GatewayClass", "istio"),
        lambda scene: scene.the("GatewayClass", "istio")["spec"].update(
            controllerName="kgateway.dev/kgateway"
        ),
    ],
)
def test_other_gateways_need_no_rule(scene: Scene, spoil: Callable[[Scene], object]) -> None:
    scene.remove("DestinationRule", "extproc")
    spoil(scene)
    assert found(scene) == []


def test_a_picker_in_plaintext_needs_no_rule(scene: Scene) -> None:
    scene.remove("DestinationRule", "extproc")
    port = scene.the("Service", "extproc")["spec"]["ports"][0]
    port["appProtocol"] = "kubernetes.io/h2c"
    assert found(scene) == []
    port["appProtocol"] = "http2"
    assert names(scene) == ["no-tls-to-picker"]
    assert scene.config is not None
    scene.config += "tls: null\n"
    assert found(scene) == []


@pytest.mark.parametrize(
    "kind", ["DestinationRule", "BackendTLSPolicy", "GatewayClass", "Gateway", "HTTPRoute", "InferencePool"]
)
def test_nothing_is_concluded_of_rules_from_what_could_not_be_read(scene: Scene, kind: str) -> None:
    scene.objects = [one for one in scene.objects if one["kind"] not in (kind, "DestinationRule")]
    assert diagnose(scene.evidence()._replace(unread=frozenset({kind}))) == []

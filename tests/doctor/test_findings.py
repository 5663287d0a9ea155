"""What is wrong with an attachment, said by name; each test spoils one thing of a sound one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from extproc.doctor.diagnosis import attached, diagnose
from extproc.doctor.findings import Finding, Severity
from extproc.doctor.inventory import Pods
from tests.doctor import sound
from tests.doctor.sound import Object, Scene

POLICIES = ("EnvoyExtensionPolicy", "BackendTrafficPolicy", "ClientTrafficPolicy")

Spoil = Callable[[Scene], object]


def found(scene: Scene) -> list[Finding]:
    return diagnose(scene.evidence())


def names(scene: Scene) -> list[str]:
    return [finding.name for finding in found(scene)]


def ext_proc(scene: Scene) -> Object:
    entry: Object = scene.the("EnvoyExtensionPolicy", "extproc")["spec"]["extProc"][0]
    return entry


def request(scene: Scene) -> Object:
    mode: Object = ext_proc(scene)["processingMode"]["request"]
    return mode


def spec(scene: Scene, kind: str) -> Object:
    found: Object = scene.the(kind, "extproc")["spec"]
    return found


def override(policy: Object) -> Object:
    found: Object = policy["loadBalancer"]["endpointOverride"]
    return found


@pytest.fixture
def scene() -> Scene:
    return sound.behind_an_http_route()


def test_with_an_attachment_as_manifests_has_it_nothing_is_wrong(scene: Scene) -> None:
    assert found(scene) == []
    assert attached(scene.evidence()) == ["HTTPRoute llm/llm"]


def test_with_an_inference_pool_as_manifests_has_it_nothing_is_wrong() -> None:
    scene = sound.behind_an_inference_pool()
    assert found(scene) == []
    assert attached(scene.evidence()) == ["InferencePool llm/llm"]


# What the gateway sends, and whether it goes on alone


@pytest.mark.parametrize(
    ("spoil", "name", "severity"),
    [
        (lambda s: ext_proc(s)["processingMode"].pop("request"), "body-mode", "error"),
        (lambda s: request(s).pop("body"), "body-mode", "error"),
        (lambda s: request(s).update(body="Streamed"), "body-mode", "error"),
        (lambda s: ext_proc(s).update(shadowMode=True), "shadow-mode", "error"),
        (lambda s: ext_proc(s)["processingMode"].pop("response"), "response-not-sent", "warning"),
        (
            lambda s: ext_proc(s)["processingMode"]["response"].pop("attributes"),
            "served-unknown",
            "warning",
        ),
        (
            lambda s: ext_proc(s)["processingMode"]["response"].update(attributes=["upstream.address"]),
            "attempts-unknown",
            "warning",
        ),
        (
            lambda s: ext_proc(s)["processingMode"]["response"].update(body="Buffered"),
            "response-buffered",
            "error",
        ),
        (lambda s: ext_proc(s)["processingMode"].pop("allowModeOverride"), "mode-override", "warning"),
        (lambda s: ext_proc(s).pop("failOpen"), "fail-closed", "warning"),
        (lambda s: ext_proc(s)["backendRefs"][0].update(port=9001), "service-port", "error"),
        (lambda s: s.remove("ReferenceGrant", "extproc"), "no-reference-grant", "error"),
        (lambda s: ext_proc(s).pop("backendSettings"), "breaker-low", "warning"),
        (
            lambda s: ext_proc(s)["backendSettings"]["circuitBreaker"].update(maxParallelRequests=1024),
            "breaker-low",
            "warning",
        ),
    ],
)
def test_an_extension_policy_says_how_the_router_is_asked(
    scene: Scene, spoil: Spoil, name: str, severity: str
) -> None:
    spoil(scene)
    (finding,) = found(scene)
    assert (finding.name, finding.severity) == (name, severity)
    assert finding.object == "EnvoyExtensionPolicy llm/extproc"
    assert finding.what
    assert finding.remedy


@pytest.mark.parametrize("body", ["Buffered", "BufferedPartial"])
def test_both_ways_to_buffer_a_body_will_do(scene: Scene, body: str) -> None:
    request(scene)["body"] = body
    assert found(scene) == []


def test_full_duplex_can_only_fail_closed_and_needs_no_override(scene: Scene) -> None:
    mode = ext_proc(scene)["processingMode"]
    mode["request"]["body"] = mode["response"]["body"] = "FullDuplexStreamed"
    mode["allowModeOverride"] = ext_proc(scene)["failOpen"] = False
    (finding,) = found(scene)
    assert finding.name == "fail-closed"
    assert "another body mode" in finding.remedy


def test_a_policy_whose_route_does_not_exist_holds_for_none(scene: Scene) -> None:
    scene.remove("HTTPRoute", "llm")
    (finding,) = found(scene)
    assert (finding.name, finding.object) == ("no-route", "EnvoyExtensionPolicy llm/extproc")


def test_a_policy_for_the_gateway_holds_for_its_routes(scene: Scene) -> None:
    spec(scene, "EnvoyExtensionPolicy")["targetRefs"] = [
        {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "llm"}
    ]
    assert found(scene) == []
    assert attached(scene.evidence()) == ["HTTPRoute llm/llm"]


def test_a_policy_may_choose_routes_by_their_labels(scene: Scene) -> None:
    policy = spec(scene, "EnvoyExtensionPolicy")
    del policy["targetRefs"]
    policy["targetSelectors"] = [{"kind": "HTTPRoute", "matchLabels": {"llm": "yes"}}]
    assert names(scene) == ["no-route"]
    scene.the("HTTPRoute", "llm")["metadata"]["labels"] = {"llm": "yes"}
    assert found(scene) == []


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_that_the_gateway_refuses_is_told_with_its_words(scene: Scene, kind: str) -> None:
    scene.the(kind, "extproc")["status"]["ancestors"] = [sound.accepted("False", "no such port")]
    (finding,) = found(scene)
    assert (finding.name, finding.severity, finding.object) == (
        "not-accepted",
        "error",
        f"{kind} llm/extproc",
    )
    assert "no such port" in finding.what


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_that_no_gateway_has_taken_up_is_told(scene: Scene, kind: str) -> None:
    del scene.the(kind, "extproc")["status"]
    (finding,) = found(scene)
    assert (finding.name, finding.object) == ("not-taken-up", f"{kind} llm/extproc")


# Whether the gateway obeys


@pytest.mark.parametrize(
    ("spoil", "name", "severity"),
    [
        (lambda policy: policy.pop("loadBalancer"), "no-endpoint-override", "error"),
        (
            lambda policy: override(policy).update(extractFrom=[{"header": "x-other"}]),
            "other-pin-header",
            "error",
        ),
        (
            lambda policy: override(policy)["extractFrom"].append({"header": "x-other"}),
            "other-pin-header",
            "warning",
        ),
        (lambda policy: policy.pop("retry"), "no-retries", "warning"),
        (lambda policy: policy["retry"].update(numRetries=0), "no-retries", "warning"),
        (lambda policy: policy["retry"].pop("retryOn"), "no-retry-on-reset", "warning"),
        (
            lambda policy: policy["retry"]["retryOn"]["triggers"].remove("reset"),
            "no-retry-on-reset",
            "warning",
        ),
        (
            lambda policy: policy["retry"]["retryOn"]["triggers"].remove("connect-failure"),
            "no-retry-on-connect-failure",
            "warning",
        ),
        (lambda policy: policy.pop("circuitBreaker"), "breaker-low", "warning"),
        (lambda policy: policy["circuitBreaker"].pop("maxPendingRequests"), "breaker-low", "warning"),
    ],
)  # fmt: skip
def test_a_backend_policy_says_whether_the_router_is_obeyed(
    scene: Scene, spoil: Callable[[Object], object], name: str, severity: str
) -> None:
    spoil(spec(scene, "BackendTrafficPolicy"))
    (finding,) = found(scene)
    assert (finding.name, finding.severity) == (name, severity)
    assert finding.object == "BackendTrafficPolicy llm/extproc"


def test_retries_on_any_5xx_cover_resets_and_failures_to_connect(scene: Scene) -> None:
    spec(scene, "BackendTrafficPolicy")["retry"]["retryOn"]["triggers"] = ["5xx"]
    assert found(scene) == []


def test_a_header_s_name_may_be_written_in_any_case(scene: Scene) -> None:
    header = "X-Gateway-Destination-Endpoint"
    override(spec(scene, "BackendTrafficPolicy"))["extractFrom"] = [{"header": header}]
    assert found(scene) == []


def test_without_a_backend_policy_the_route_lacks_everything_of_it(scene: Scene) -> None:
    scene.remove("BackendTrafficPolicy", "extproc")
    assert names(scene) == ["no-endpoint-override", "no-retries", "breaker-low", "request-timeout"]
    assert {finding.object for finding in found(scene)} == {"HTTPRoute llm/llm"}


@pytest.mark.parametrize(
    ("policy", "rule", "wrong"),
    [(None, None, True), ("0s", None, False), ("10s", None, True), ("10m", None, False), ("0s", "15s", True)],
)
def test_a_limit_of_seconds_would_cut_answers(
    scene: Scene, policy: str | None, rule: str | None, wrong: bool
) -> None:
    spec(scene, "BackendTrafficPolicy")["timeout"]["http"]["requestTimeout"] = policy
    scene.the("HTTPRoute", "llm")["spec"]["rules"][0]["timeouts"] = {"request": rule}
    assert names(scene) == (["request-timeout"] if wrong else [])


def test_a_route_s_policy_stands_in_for_the_gateway_s_unless_they_are_merged(scene: Scene) -> None:
    general = spec(scene, "BackendTrafficPolicy")
    general["targetRefs"][0].update(kind="Gateway")
    own: dict[str, Any] = {
        "kind": "BackendTrafficPolicy",
        "metadata": {"namespace": "llm", "name": "own", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"targetRefs": [{"kind": "HTTPRoute", "name": "llm"}], "retry": {"numRetries": 1}},
        "status": {"ancestors": [sound.accepted()]},
    }
    scene.objects.append(own)
    assert "no-endpoint-override" in names(scene)
    own["spec"]["mergeType"] = "StrategicMerge"
    assert found(scene) == []


# What clients may say, and how much is held of a request


@pytest.mark.parametrize(
    "early",
    [
        None,
        {"remove": ["x-other"]},
        {"removeOnMatch": [{"type": "Prefix", "value": "x-other-"}]},
        {"removeOnMatch": [{"value": "x-gateway-"}]},
    ],
)
def test_a_pin_that_clients_may_send_is_an_error(scene: Scene, early: object) -> None:
    spec(scene, "ClientTrafficPolicy")["headers"] = {"earlyRequestHeaders": early}
    (finding,) = found(scene)
    assert (finding.name, finding.severity) == ("pin-not-stripped", "error")


@pytest.mark.parametrize(
    "matcher",
    [
        {"value": "x-gateway-destination-endpoint"},
        {"type": "Prefix", "value": "x-gateway-"},
        {"type": "Suffix", "value": "-destination-endpoint"},
        {"type": "RegularExpression", "value": "^x-gateway-destination-endpoint$"},
    ],
)
def test_a_pin_may_be_stripped_by_a_pattern(scene: Scene, matcher: Object) -> None:
    spec(scene, "ClientTrafficPolicy")["headers"] = {"earlyRequestHeaders": {"removeOnMatch": [matcher]}}
    assert found(scene) == []


def test_without_a_client_policy_the_gateway_lacks_everything_of_it(scene: Scene) -> None:
    scene.remove("ClientTrafficPolicy", "extproc")
    assert names(scene) == ["pin-not-stripped", "buffer-small"]
    assert {finding.object for finding in found(scene)} == {"Gateway llm/llm"}


@pytest.mark.parametrize(
    ("limit", "window", "body", "expected"),
    [
        (None, "8Mi", "Buffered", ("buffer-small", "error")),
        ("512Ki", "8Mi", "Buffered", ("buffer-small", "error")),
        (32768, 65536, "BufferedPartial", ("buffer-small", "warning")),
        ("8Mi", None, "Buffered", ("buffer-small", "error")),
        ("8Mi", "64Ki", "BufferedPartial", ("buffer-small", "warning")),
        ("1Mi", "1Mi", "Buffered", None),
        ("8Mi", "1Mi", "Buffered", None),
        ("20Mi", "8Mi", "Buffered", ("message-limit", "warning")),
        ("8Mi", "20Mi", "BufferedPartial", ("message-limit", "warning")),
    ],
)
def test_as_much_is_held_as_most_prompts_need_and_no_more_than_the_router_takes(
    scene: Scene, limit: object, window: object, body: str, expected: tuple[str, str] | None
) -> None:
    request(scene)["body"] = body
    policy = spec(scene, "ClientTrafficPolicy")
    policy["connection"]["bufferLimit"] = limit
    policy["http2"]["initialStreamWindowSize"] = window
    assert [(one.name, one.severity) for one in found(scene)] == ([expected] if expected else [])


def test_a_small_window_is_told_apart_from_a_small_buffer(scene: Scene) -> None:
    del spec(scene, "ClientTrafficPolicy")["http2"]
    (finding,) = found(scene)
    assert "bodies of more than 65536 bytes by HTTP/2" in finding.what
    assert "http2.initialStreamWindowSize: 8Mi" in finding.remedy


def test_a_listener_s_own_policy_stands_in_for_the_gateway_s(scene: Scene) -> None:
    own = {
        "kind": "ClientTrafficPolicy",
        "metadata": {"namespace": "llm", "name": "own"},
        "spec": {"targetRefs": [{"kind": "Gateway", "name": "llm", "sectionName": "http"}]},
        "status": {"ancestors": [sound.accepted()]},
    }
    scene.objects.append(own)
    assert names(scene) == ["pin-not-stripped", "buffer-small"]
    # The route may come by another listener, for which the Gateway's holds.
    scene.the("Gateway", "llm")["spec"]["listeners"].append({"name": "other", "port": 81})
    scene.the("HTTPRoute", "llm")["spec"]["parentRefs"][0]["sectionName"] = "other"
    assert found(scene) == []


# The router's Service, its rights and its configuration


def test_a_service_that_does_not_exist_is_told(scene: Scene) -> None:
    scene.remove("Service", "extproc")
    (finding,) = found(scene)
    assert (finding.name, finding.severity) == ("no-service", "error")


def test_a_service_without_ready_pods_is_told(scene: Scene) -> None:
    scene.objects.remove(scene.the("EndpointSlice", "extproc-1"))
    assert names(scene) == ["no-ready-endpoints"]
    scene.objects.append(sound.slice_of("warmroute", "extproc", {"grpc": 9002}, 2, ready=False))
    assert names(scene) == ["no-ready-endpoints"]


@pytest.mark.parametrize("protocol", [None, "http"])
def test_a_port_that_does_not_say_http_2_is_told(scene: Scene, protocol: str | None) -> None:
    scene.the("Service", "extproc")["spec"]["ports"][0]["appProtocol"] = protocol
    (finding,) = found(scene)
    assert (finding.name, finding.severity) == ("app-protocol", "warning")


def test_rights_that_the_router_lacks_are_told_with_the_rule_to_add(scene: Scene) -> None:
    (finding,) = diagnose(scene.evidence(lambda resource: resource == "endpointslices"))
    assert (finding.name, finding.object) == ("not-allowed", "ServiceAccount warmroute/extproc")
    assert "may not list, watch endpointslices in namespace llm" in finding.what
    assert (
        "{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}" in finding.remedy
    )


def test_without_a_right_that_only_node_caches_need_it_works() -> None:
    scene = sound.behind_an_inference_pool()
    (finding,) = diagnose(scene.evidence(lambda resource: resource == "endpointslices"))
    assert (finding.name, finding.severity) == ("not-allowed", "warning")
    assert scene.config is not None
    scene.config += "  nodeCache: false\n"
    assert diagnose(scene.evidence(lambda resource: resource == "endpointslices")) == []


def test_settings_in_a_config_map_need_a_right_to_that_one_alone(scene: Scene) -> None:
    assert scene.config is not None
    scene.config += "  settingsFrom: {configMap: {name: routing, namespace: llm}}\n"
    assert found(scene) == []
    (finding,) = diagnose(scene.evidence(lambda resource: resource == "configmaps"))
    assert (finding.name, finding.severity) == ("not-allowed", "error")
    assert "resources: [configmaps], resourceNames: [routing]" in finding.remedy


def pool(endpoints: str) -> str:
    return f"pools: [{{name: llm, endpoints: {endpoints}}}]"


@pytest.mark.parametrize(
    ("endpoints", "name", "said"),
    [
        ("{service: {name: gone, namespace: llm, port: 8000}}", "pool-names-nothing", "Service llm/gone"),
        ("{service: {name: llm, namespace: llm, port: 9999}}", "pool-port", "have no port 9999, only 8000"),
        ("{inferencePool: {name: gone, namespace: llm}}", "pool-names-nothing", "InferencePool llm/gone"),
        ("{pods: {selector: app=gone, ports: [8000], namespace: llm}}", "pool-without-endpoints", "app=gone"),
    ],
)
def test_a_pool_that_names_what_is_not_there_is_told(
    scene: Scene, endpoints: str, name: str, said: str
) -> None:
    scene.config = f"maxMessageBytes: 20000000\n{pool(endpoints)}"
    findings = [one for one in found(scene) if one.name != "other-backend"]
    assert [(one.name, one.severity, one.object) for one in findings] == [(name, "error", "pool llm")]
    assert said in findings[0].what


def test_a_pool_whose_service_has_no_ready_endpoints_is_told(scene: Scene) -> None:
    scene.objects.remove(scene.the("EndpointSlice", "llm-1"))
    scene.objects.append(sound.slice_of("llm", "llm", {"": 8000}, 2, ready=False))
    assert names(scene) == ["pool-without-endpoints"]


def test_a_pool_of_pods_has_those_that_are_ready(scene: Scene) -> None:
    scene.config = "maxMessageBytes: 20000000\n" + pool(
        "{pods: {selector: app=llm, ports: [8000], namespace: llm}}"
    )
    pods = Pods("llm", "app=llm")
    scene.pods = {pods: [sound.pod("llm-1", ready=False)]}
    assert names(scene) == ["pool-without-endpoints"]
    scene.pods = {pods: [sound.pod("llm-1", ready=False), sound.pod("llm-2")]}
    assert found(scene) == []


def test_a_route_that_no_pool_takes_is_told_with_its_name(scene: Scene) -> None:
    assert scene.config is not None
    scene.config += '  match: {route: "httproute/llm/other/*"}\n'
    (finding,) = found(scene)
    assert (finding.name, finding.object) == ("route-not-taken", "HTTPRoute llm/llm")
    assert 'match: {route: "httproute/llm/llm/*"}' in finding.remedy
    scene.config = scene.config.replace("/other/", "/llm/")
    assert found(scene) == []


def test_pools_told_apart_by_route_need_the_route_s_name(scene: Scene) -> None:
    assert scene.config is not None
    scene.config += '  match: {route: "httproute/llm/llm/*"}\n'
    request(scene)["attributes"] = []
    assert names(scene) == ["route-name-not-sent"]


def test_a_pool_of_another_service_than_the_route_s_is_told(scene: Scene) -> None:
    scene.the("HTTPRoute", "llm")["spec"]["rules"][0]["backendRefs"] = [{"name": "blue", "port": 8000}]
    (finding,) = found(scene)
    assert (finding.name, finding.severity) == ("other-backend", "warning")


def test_without_the_router_s_configuration_the_rest_is_looked_at(scene: Scene) -> None:
    scene.config = None
    assert found(scene) == []
    ext_proc(scene).pop("failOpen")
    assert names(scene) == ["fail-closed"]


@pytest.mark.parametrize(
    "kind",
    [
        *POLICIES,
        *("HTTPRoute", "GRPCRoute", "Gateway", "ReferenceGrant", "Service", "EndpointSlice", "InferencePool"),
    ],
)
def test_nothing_is_concluded_from_what_could_not_be_read(scene: Scene, kind: str) -> None:
    scene.objects = [one for one in scene.objects if one["kind"] != kind]
    assert diagnose(scene.evidence()._replace(unread=frozenset({kind}))) == []


# Other attachments


def test_a_router_that_nothing_names_is_not_attached(scene: Scene) -> None:
    scene.remove("EnvoyExtensionPolicy", "extproc")
    (finding,) = found(scene)
    assert (finding.name, finding.severity) == ("not-attached", "warning")
    assert attached(scene.evidence()) == []


@pytest.mark.parametrize(
    ("spoil", "name", "severity"),
    [
        (lambda pool: pool["spec"]["endpointPickerRef"].pop("failureMode"), "fail-closed", "warning"),
        (lambda pool: pool["spec"]["endpointPickerRef"]["port"].update(number=1), "service-port", "error"),
        (lambda pool: pool["status"].update(parents=[]), "not-taken-up", "error"),
        (
            lambda pool: pool["status"].update(parents=[sound.accepted("False", "no such Service")]),
            "not-accepted",
            "error",
        ),
    ],
)
def test_an_inference_pool_says_whether_and_how_the_router_is_asked(
    spoil: Callable[[Object], object], name: str, severity: str
) -> None:
    scene = sound.behind_an_inference_pool()
    spoil(scene.the("InferencePool", "llm"))
    findings = found(scene)
    assert {(one.name, one.severity, one.object) for one in findings} == {
        (name, severity, "InferencePool llm/llm")
    }


def test_an_inference_pool_without_ready_pods_is_told() -> None:
    scene = sound.behind_an_inference_pool()
    scene.pods = {}
    (finding,) = found(scene)
    assert (finding.name, finding.object) == ("pool-without-endpoints", "InferencePool llm/llm")


def test_errors_come_first_and_nothing_is_said_twice(scene: Scene) -> None:
    ext_proc(scene).pop("failOpen")
    spec(scene, "ClientTrafficPolicy").pop("headers")
    scene.the("Gateway", "llm")["spec"]["listeners"].append({"name": "other", "port": 81})
    assert [finding.severity for finding in found(scene)] == [Severity.ERROR, Severity.WARNING]

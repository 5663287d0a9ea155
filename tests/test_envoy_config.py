"""The Envoy configuration as text, and the command that prints it. What Envoy does with it: tests/envoy."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap

from extproc.commands.envoy_config import command
from extproc.envoy_config import (
    InvalidError,
    Options,
    OptionsError,
    RenderError,
    bootstrap,
    find_envoy,
    render,
    validate,
)
from tests.certificates import Authority, Mounted

OPTIONS = Options(endpoints=("127.0.0.1:8001", "[::1]:8002"))
EVERYTHING = Options(
    endpoints=("127.0.0.1:8001", "[fd00::1]:8002"),
    routers=("127.0.0.1:9002", "unix:/run/extproc.sock"),
    listen="[::]:8080",
    plain_listen="127.0.0.1:8081",
    exchange="one-message",
    body_limit=64 * 1024,
    fail_closed=True,
    message_timeout=0.25,
    admin="0.0.0.0:9901",
    access_log="/dev/stdout",
    route_name="llm-a",
    pool="blue",
)
NAMED = Options(endpoints_dns="llm-pods.llm.svc:8000", routers=("extproc-replicas.warmroute.svc:9002",))


@cache
def tree(options: Options) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(render(bootstrap(options)))
    return parsed


def manager(options: Options, listener: int = 0) -> dict[str, Any]:
    chain = tree(options)["static_resources"]["listeners"][listener]["filter_chains"][0]
    config: dict[str, Any] = chain["filters"][0]["typed_config"]
    return config


def routes(options: Options) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = manager(options)["route_config"]["virtual_hosts"][0]["routes"]
    return found


def ext_proc(options: Options) -> dict[str, Any]:
    config: dict[str, Any] = manager(options)["http_filters"][0]["typed_config"]
    return config


def cluster(options: Options, name: str) -> dict[str, Any]:
    (found,) = [c for c in tree(options)["static_resources"]["clusters"] if c["name"] == name]
    return dict(found)


# What is printed


@pytest.mark.parametrize("options", [OPTIONS, EVERYTHING, NAMED], ids=["defaults", "everything", "named"])
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_envoy_takes_what_is_printed(options: Options, form: Any) -> None:
    envoy = find_envoy()
    assert envoy is not None
    validate(render(bootstrap(options), form), envoy)


def test_yaml_and_json_say_the_same() -> None:
    message = bootstrap(EVERYTHING)
    assert yaml.safe_load(render(message, "yaml")) == json.loads(render(message, "json"))


def test_nothing_is_lost_between_the_typed_message_and_the_text() -> None:
    message = bootstrap(EVERYTHING)
    text = json.loads(render(message, "json"))
    # The library reads its own casing only.
    text["static_resources"]["clusters"][0]["outlier_detection"].pop("enforcing_consecutive_5xx")
    message.static_resources.clusters[0].outlier_detection.enforcing_consecutive_5xx = None  # type: ignore[union-attr]
    assert Bootstrap.from_dict(text) == message


def test_a_field_envoy_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    message = bootstrap(OPTIONS)
    broken = message.to_dict(casing=str)  # type: ignore[arg-type]
    broken["static_resources"]["clusters"][0]["connect_timeot"] = "1s"
    monkeypatch.setattr(type(message), "to_dict", lambda *_, **__: broken)
    with pytest.raises(RenderError, match="connect_timeot"):
        render(message)


def test_what_envoy_refuses_is_told_in_its_words() -> None:
    envoy = find_envoy()
    assert envoy is not None
    with pytest.raises(InvalidError, match="no_such_cluster"):
        validate(render(bootstrap(OPTIONS)).replace("cluster: engines", "cluster: no_such_cluster"), envoy)


def test_an_envoy_that_cannot_be_run_is_named() -> None:
    with pytest.raises(InvalidError, match="cannot run /nonexistent/envoy"):
        validate("{}", "/nonexistent/envoy")


def test_a_client_cannot_pin_the_engine() -> None:
    mutations = manager(OPTIONS)["early_header_mutation_extensions"][0]["typed_config"]["mutations"]
    stripped = [mutation["remove_on_match"]["key_matcher"]["prefix"] for mutation in mutations]
    assert "x-gateway-destination-endpoint" in stripped
    policy = cluster(OPTIONS, "engines")["load_balancing_policy"]["policies"][0]["typed_extension_config"]
    (source,) = policy["typed_config"]["override_host_sources"]
    assert list(source) == ["metadata"]


def test_requests_are_retried_on_as_many_engines_as_the_router_names() -> None:
    for route in routes(OPTIONS):
        policy = route["route"]["retry_policy"]
        assert policy["num_retries"] == 4
        assert set(policy["retry_on"].split(",")) >= {"connect-failure", "reset", "retriable-status-codes"}
        assert route["route"]["timeout"] == "0s"


def test_breakers_do_not_stop_a_busy_minute() -> None:
    for name in ("engines", "extproc"):
        (threshold,) = cluster(OPTIONS, name)["circuit_breakers"]["thresholds"]
        assert min(threshold.values()) >= 100_000
        assert len(threshold) == 4


def test_the_stream_to_the_router_stays_open_to_the_end_of_the_reply() -> None:
    modes = [ext_proc(OPTIONS)["processing_mode"]]
    for options in (OPTIONS, EVERYTHING):
        for route in routes(options):
            override = route["typed_per_filter_config"]["envoy.filters.http.ext_proc"]["overrides"]
            modes.append(override["processing_mode"])
    assert len(modes) == 9
    for mode in modes:
        assert (mode["response_header_mode"], mode["response_trailer_mode"]) == ("SEND", "SEND")
        assert mode.get("response_body_mode", "NONE") == "NONE"


@pytest.mark.parametrize(("exchange", "headers"), [("two-message", "SEND"), ("one-message", "SKIP")])
def test_each_way_a_body_can_come_has_its_exchange(exchange: Any, headers: str) -> None:
    modes = [
        route["typed_per_filter_config"]["envoy.filters.http.ext_proc"]["overrides"]["processing_mode"]
        for route in routes(dataclasses.replace(OPTIONS, exchange=exchange))
    ]
    assert [(mode["request_header_mode"], mode.get("request_body_mode")) for mode in modes] == [
        ("SEND", None),  # websocket
        (headers, "BUFFERED_PARTIAL"),  # fits
        ("SEND", "BUFFERED_PARTIAL"),  # longer
        ("SEND", "BUFFERED"),  # of unknown length
    ]


def test_every_content_length_has_one_route() -> None:
    _, fitting, long, unsized = routes(EVERYTHING)

    def lengths(route: dict[str, Any]) -> tuple[int, int]:
        (header,) = route["match"]["headers"]
        assert header["name"] == "content-length"
        return int(header["range_match"]["start"]), int(header["range_match"]["end"])

    assert lengths(fitting)[0] == 1
    assert lengths(fitting)[1] == lengths(long)[0] > EVERYTHING.body_limit
    assert "headers" not in unsized["match"]
    assert fitting["request_body_buffer_limit"] == lengths(fitting)[1] - 1
    assert long["request_body_buffer_limit"] == EVERYTHING.body_limit
    buffer = fitting["typed_per_filter_config"]["envoy.filters.http.buffer"]["buffer"]
    assert buffer["max_request_bytes"] == fitting["request_body_buffer_limit"]


def test_no_message_is_larger_than_the_router_takes() -> None:
    options = dataclasses.replace(OPTIONS, max_message_bytes=4 * 2**20, body_limit=3 * 2**20)
    for route in routes(options):
        assert route.get("request_body_buffer_limit", 0) + 2 * 256 * 1024 < options.max_message_bytes + 2**20


def test_the_router_may_be_absent_unless_fail_closed() -> None:
    assert ext_proc(OPTIONS)["failure_mode_allow"] is True
    assert "failure_mode_allow" not in ext_proc(EVERYTHING)


def test_options_reach_the_configuration() -> None:
    whole = tree(EVERYTHING)
    first, second = whole["static_resources"]["listeners"]
    assert first["address"]["socket_address"] == {"address": "::", "port_value": 8080}
    assert second["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 8081}
    assert [each["name"] for each in manager(EVERYTHING, 1)["http_filters"]] == ["envoy.filters.http.router"]
    assert ext_proc(EVERYTHING)["message_timeout"] == "0.250s"
    assert ext_proc(EVERYTHING)["grpc_service"]["initial_metadata"] == [
        {"key": "x-warmroute-pool", "value": "blue"}
    ]
    assert {route["name"] for route in routes(EVERYTHING)} == {"llm-a"}
    assert manager(EVERYTHING)["access_log"][0]["typed_config"]["path"] == "/dev/stdout"


def test_the_admin_page_beyond_loopback_shows_state_only() -> None:
    assert tree(EVERYTHING)["admin"]["allow_paths"] == [{"prefix": "/ready"}, {"prefix": "/stats"}]
    assert "allow_paths" not in tree(OPTIONS)["admin"]
    assert "admin" not in tree(dataclasses.replace(OPTIONS, admin=None))


def test_a_router_that_listens_everywhere_is_asked_on_loopback() -> None:
    hosts = cluster(dataclasses.replace(OPTIONS, routers=("0.0.0.0:1", "[::]:2")), "extproc")
    addresses = [
        host["endpoint"]["address"]["socket_address"]["address"]
        for host in hosts["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    assert addresses == ["127.0.0.1", "::1"]
    assert hosts["type"] == "STATIC"


def test_a_router_by_name_is_resolved_by_envoy() -> None:
    named = cluster(dataclasses.replace(OPTIONS, routers=("extproc.llm.svc:9002",)), "extproc")
    assert "type" not in named
    assert named["cluster_type"]["name"] == "envoy.cluster.dns"


def test_engines_by_name_are_looked_up_each_second_and_for_both_address_families() -> None:
    found = cluster(Options(endpoints_dns="llm-pods.llm.svc:8000"), "engines")
    lookup = found["cluster_type"]["typed_config"]
    assert (lookup["dns_refresh_rate"], lookup["dns_lookup_family"]) == ("1s", "ALL")
    (host,) = found["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert host["endpoint"]["address"]["socket_address"] == {
        "address": "llm-pods.llm.svc",
        "port_value": 8000,
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"endpoints": ()}, "no endpoints"),
        ({"endpoints": ("engine:8000",)}, "endpoint 'engine:8000': must be an IP address"),
        ({"endpoints": ("127.0.0.1:1", "127.0.0.1:1")}, "named twice"),
        ({"endpoints": ("[::1]:1", "[0:0::1]:1")}, "named twice"),
        ({"endpoints_dns": "llm:8000"}, "exclude each other"),
        ({"endpoints": (), "endpoints_dns": "10.0.0.1:8000"}, "must be NAME:PORT"),
        ({"endpoints": (), "endpoints_dns": "llm"}, "endpoints DNS 'llm'"),
        ({"routers": ()}, "no router"),
        ({"routers": ("127.0.0.1",)}, "router '127.0.0.1'"),
        ({"routers": ("127.0.0.1:0",)}, "name a port"),
        ({"listen": "unix:/x"}, "listen 'unix:/x': must be IP:PORT"),
        ({"listen": "localhost:80"}, "listen 'localhost:80': must be IP:PORT"),
        ({"plain_listen": "8080"}, "plain listen '8080'"),
        ({"admin": "localhost:80"}, "admin 'localhost:80': must be IP:PORT"),
        ({"exchange": "three-message"}, "either two-message or one-message"),
        ({"body_limit": 1}, "at least 16384 bytes"),
        ({"body_limit": 16 * 2**20}, "maxMessageBytes"),
        ({"message_timeout": 0}, "between 0.001 and 3600 seconds"),
        ({"message_timeout": float("nan")}, "between 0.001 and 3600 seconds"),
        ({"route_name": ""}, "route name is empty"),
    ],
)
def test_an_option_out_of_range_is_refused_with_its_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionsError) as raised:
        dataclasses.replace(OPTIONS, **change)
    assert said in str(raised.value)


# The command


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "endpoints.yaml").write_text("[127.0.0.1:8003]\n")
    path = tmp_path / "extproc.yaml"
    path.write_text(
        """
listen: unix:/run/x.sock
pools:
- name: llama
  match: {route: "llm-*"}
  endpoints: {static: ["127.0.0.1:8001", "127.0.0.1:8002"]}
- name: qwen
  match: {metadata: blue}
  endpoints: {file: endpoints.yaml}
- name: any
  match: {route: "any-?"}
  endpoints: {file: missing.yaml}
"""
    )
    return path


def ports(text: str) -> list[int]:
    engines = yaml.safe_load(text)["static_resources"]["clusters"][0]
    hosts = engines["load_assignment"]["endpoints"][0]["lb_endpoints"]
    return [host["endpoint"]["address"]["socket_address"]["port_value"] for host in hosts]


def test_the_command_takes_a_pool_from_the_router_s_configuration(config: Path) -> None:
    result = run("--config", config, "--pool", "llama")
    assert result.exit_code == 0, result.output
    assert ports(result.stdout) == [8001, 8002]
    assert "path: /run/x.sock" in result.stdout
    assert "name: llm-llama" in result.stdout


def test_the_command_reads_the_endpoints_file(config: Path) -> None:
    result = run("--config", config, "--pool", "qwen", "--no-validate")
    assert result.exit_code == 0, result.output
    assert ports(result.stdout) == [8003]
    assert "value: blue" in result.stdout


def test_the_command_needs_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "envoy.json"
    result = run("--endpoint", "127.0.0.1:1", "--router", "unix:/x", "--format", "json", "-o", path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert ports(path.read_text()) == [1]
    assert [file.name for file in tmp_path.iterdir()] == ["envoy.json"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "give --config FILE, --endpoint IP:PORT or --endpoints-dns NAME:PORT"),
        (["--pool", "x", "--endpoint", "127.0.0.1:1"], 2, "give --config too"),
        (["--config", "CONFIG"], 2, "choose with --pool one of llama, qwen, any"),
        (["--config", "CONFIG", "--pool", "x"], 2, "no pool 'x' in the configuration: it has llama"),
        (["--config", "CONFIG", "--pool", "any"], 2, "missing.yaml"),
        (["--config", "CONFIG", "--pool", "any", "--endpoint", "127.0.0.1:1"], 2, "choose one with --route"),
        (["--config", "/nonexistent"], 2, "/nonexistent"),
        (["--endpoint", "x"], 2, "endpoint 'x'"),
        (["--endpoint", "127.0.0.1:1", "-o", "/nonexistent/x"], 1, "cannot write /nonexistent/x"),
        (["--endpoint", "127.0.0.1:1", "--access-log", "/nonexistent/x"], 3, "unable to open file"),
        (["--endpoint", "127.0.0.1:1", "--envoy", "/nonexistent/envoy"], 2, "/envoy: is no program"),
    ],
)  # fmt: skip
def test_the_command_says_what_is_wrong(config: Path, arguments: list[str], code: int, said: str) -> None:
    result = run(*(config if argument == "CONFIG" else argument for argument in arguments))
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


# TLS with the router


def tls_of(text: str) -> dict[str, Any]:
    """The TLS context of the router's cluster as printed; the engines' has none."""
    engines, router = yaml.safe_load(text)["static_resources"]["clusters"]
    assert "transport_socket" not in engines
    context: dict[str, Any] = router["transport_socket"]["typed_config"]["common_tls_context"]
    return context


def with_tls(directory: Path, tls: str) -> Path:
    path = directory / "extproc.yaml"
    path.write_text(f"tls: {tls}\npools: [{{name: a, endpoints: {{static: ['127.0.0.1:1']}}}}]\n")
    return path


def test_a_router_in_plaintext_is_asked_in_plaintext() -> None:
    assert "transport_socket" not in cluster(OPTIONS, "extproc")


def test_envoy_trusts_the_authority_that_issued_the_router_s_certificate(tmp_path: Path) -> None:
    authority = Authority()
    files = Mounted(tmp_path, authority.issue(["router.example", "10.0.0.1"]), authority.pem)
    config = with_tls(tmp_path, "{cert: tls.crt, key: tls.key, clientCa: ca.crt}")
    result = run("--config", config, "--client-cert", files.cert, "--client-key", files.key)
    assert result.exit_code == 0, result.output
    context = tls_of(result.stdout)
    trust = context["validation_context"]
    assert trust["trusted_ca"] == {"filename": str(files.ca)}
    assert [(name["san_type"], name["matcher"]) for name in trust["match_typed_subject_alt_names"]] == [
        ("DNS", {"exact": "router.example"}),
        ("IP_ADDRESS", {"exact": "10.0.0.1"}),
    ]
    assert context["tls_certificates"] == [
        {"certificate_chain": {"filename": str(files.cert)}, "private_key": {"filename": str(files.key)}}
    ]
    assert context["alpn_protocols"] == ["h2"]


def test_envoy_trusts_the_certificate_itself_where_no_authority_of_it_is_known(tmp_path: Path) -> None:
    files = Mounted(tmp_path, Authority().issue(), Authority("of clients").pem)
    config = with_tls(tmp_path, "{cert: tls.crt, key: tls.key, clientCa: ca.crt}")
    result = run("--config", config, "--client-cert", files.cert, "--client-key", files.key)
    assert result.exit_code == 0, result.output
    assert tls_of(result.stdout)["validation_context"]["trusted_ca"] == {"filename": str(files.cert)}


def test_a_self_signed_router_is_not_verified_and_this_is_said(tmp_path: Path) -> None:
    result = run("--config", with_tls(tmp_path, "{selfSigned: true}"))
    assert result.exit_code == 0, result.output
    assert "validation_context" not in tls_of(result.stdout)
    assert "Envoy will not ask who answers" in result.stderr


def test_without_the_router_s_configuration_its_authority_turns_tls_on(tmp_path: Path) -> None:
    files = Mounted(tmp_path, Authority().issue(), Authority().pem)
    result = run("--endpoint", "127.0.0.1:1", "--router-ca", files.ca)
    assert result.exit_code == 0, result.output
    assert tls_of(result.stdout)["validation_context"] == {"trusted_ca": {"filename": str(files.ca)}}


@pytest.mark.parametrize(
    ("tls", "arguments", "said"),
    [
        ("{cert: no.crt, key: no.key}", [], "no.crt: no such file"),
        ("{selfSigned: true, clientCa: ca.crt}", [], "(tls.clientCa): give --client-cert and --client-key"),
        ("{selfSigned: true}", ["--client-cert", "x"], "needs its key"),
        ("null", ["--router-ca", "x"], "the router's configuration has no tls"),
    ],
)
def test_what_tls_lacks_is_said(tmp_path: Path, tls: str, arguments: list[str], said: str) -> None:
    result = run("--config", with_tls(tmp_path, tls), *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr

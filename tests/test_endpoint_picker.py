"""The settings of an Endpoint Picker: flags over a file over defaults."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from extproc.address import Address
from extproc.config import Config, ConfigError, InferencePoolConfig, LogConfig, PodsConfig, TlsConfig, parse
from extproc.endpoint_picker import Flags, is_foreign, settings

ANY = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
FILE = """
listen: 127.0.0.1:7002
health: null
log: {format: json}
drainTimeout: 60s
tls: {cert: a.crt, key: a.key, clientCa: ca.crt}
pools:
- name: from-file
  match: {route: llm}
  strategy: LEAST_OUTSTANDING_REQUESTS
  shed: {maxInFlight: 9}
  endpointSubset: false
  endpoints: {static: ["10.0.0.9:80"]}
"""


def base(text: str = FILE) -> Config:
    return parse(text, "file.yaml", Path("/etc/extproc"))


def refused(flags: Flags, over: Config | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        settings(flags, over)
    return str(error.value)


def test_the_name_of_a_pool_is_enough() -> None:
    config = settings(Flags(pool_name="llama"))
    assert (config.listen, config.health, config.metrics) == (
        Address(ANY, 9002),
        Address(ANY, 9003),
        Address(ANY, 9090),
    )
    assert config.tls == TlsConfig(self_signed=True)
    (pool,) = config.pools
    assert (pool.name, pool.match, pool.endpoint_subset) == ("llama", None, True)
    assert pool.endpoints.inference_pool == InferencePoolConfig(name="llama")


def test_flags_go_before_the_file_and_the_file_before_defaults() -> None:
    config = settings(
        Flags(
            pool_name="llama",
            pool_namespace="llm",
            grpc_port=9102,
            metrics_port=9190,
            cert_path=Path("/certs"),
            endpoint_subset=True,
            log_level="debug",
        ),
        base(),
    )
    assert (config.listen, config.health, config.metrics) == (Address(ANY, 9102), None, Address(ANY, 9190))
    assert config.tls == TlsConfig(
        cert=Path("/certs/tls.crt"), key=Path("/certs/tls.key"), client_ca=Path("/etc/extproc/ca.crt")
    )
    assert config.log == LogConfig(format="json", level="debug")
    assert config.drain_timeout == 60
    (pool,) = config.pools
    assert (pool.name, pool.strategy, pool.endpoint_subset) == (
        "llm/llama",
        "LEAST_OUTSTANDING_REQUESTS",
        True,
    )
    assert pool.shed is not None
    assert pool.endpoints.inference_pool == InferencePoolConfig(name="llama", namespace="llm")


def test_without_flags_the_file_is_run_for_every_request() -> None:
    config = settings(Flags(), base())
    assert config.pools[0] == base().pools[0].model_copy(update={"match": None})
    assert config == base().model_copy(update={"pools": config.pools, "metrics": Address(ANY, 9090)})


@pytest.mark.parametrize(
    ("flags", "file", "tls"),
    [
        ({"secure_serving": False}, FILE, None),
        ({"secure_serving": False, "cert_path": Path("/c")}, None, None),
        ({"secure_serving": True}, None, TlsConfig(self_signed=True)),
        ({}, "tls: null\n" + FILE.replace("tls:", "#"), None),
        ({"secure_serving": True}, "tls: null\n" + FILE.replace("tls:", "#"), TlsConfig(self_signed=True)),
        ({"secure_serving": True}, FILE, base().tls),
        ({}, FILE, base().tls),
        ({"cert_path": Path("/c")}, None, TlsConfig(cert=Path("/c/tls.crt"), key=Path("/c/tls.key"))),
    ],
)
def test_tls_is_on_unless_it_is_turned_off(flags: dict[str, Any], file: str | None, tls: object) -> None:
    over = None if file is None else base(file)
    assert settings(Flags(pool_name="a", **flags), over).tls == tls


def test_pods_can_be_selected_without_an_inference_pool() -> None:
    flags = Flags(
        endpoint_selector="app=vllm,tier!=test", endpoint_target_ports=(8000, 8001), pool_namespace="llm"
    )
    (pool,) = settings(flags).pools
    assert pool.endpoints.pods == PodsConfig(
        selector="app=vllm,tier!=test", ports=(8000, 8001), namespace="llm"
    )
    assert pool.name == "llm/app-vllm-tier-test"


def test_endpoints_that_are_named_go_before_those_that_are_looked_up() -> None:
    (pool,) = settings(Flags(pool_name="llama", endpoints=("10.0.0.1:80", "[fd00::1]:80"))).pools
    assert (pool.name, pool.endpoints.static) == ("llama", ("10.0.0.1:80", "[fd00::1]:80"))
    (pool,) = settings(Flags(endpoints_file=Path("/e.yaml"))).pools
    assert (pool.name, pool.endpoints.file) == ("endpoints", Path("/e.yaml"))


TWO_POOLS = FILE + '- {name: b, match: {route: b}, endpoints: {static: ["10.0.0.8:80"]}}\n'


@pytest.mark.parametrize(
    ("flags", "file", "said"),
    [
        ({}, None, "--pool-name: is missing: name the InferencePool"),
        ({"pool_name": "a", "endpoint_selector": "b"}, None, "--pool-name: excludes --endpoint-selector"),
        ({"endpoint_selector": "app=x"}, None, "--endpoint-target-ports: is an empty list"),
        (
            {"endpoint_selector": "app=x", "endpoint_target_ports": (0,)},
            None,
            "--endpoint-target-ports: is 0",
        ),
        (
            {"endpoint_selector": "a;b", "endpoint_target_ports": (1,)},
            None,
            "--endpoint-selector: is the text",
        ),
        ({"pool_name": "Llama"}, None, "--pool-name: is the text 'Llama'; must be a name: lower-case"),
        ({"pool_name": "a", "pool_namespace": "b.c"}, None, "--pool-namespace: is the text 'b.c'"),
        ({"endpoints": ("engine-1:80",)}, None, "--endpoints: is the text 'engine-1:80'; must be an IP"),
        ({"endpoints": ("10.0.0.1:80",), "endpoints_file": Path("x")}, None, "--endpoints: excludes"),
        ({"pool_name": "a", "grpc_port": 9003}, None, "--grpc-health-port: is"),
        ({"pool_name": "a", "metrics_port": 9002}, None, "--metrics-port: is"),
        ({}, TWO_POOLS, "--config-file: has 2 pools; an Endpoint Picker serves one"),
    ],
)
def test_what_is_wrong_is_said_by_the_name_of_the_flag(
    flags: dict[str, Any], file: str | None, said: str
) -> None:
    text = refused(Flags(**flags), None if file is None else base(file))
    assert text.startswith(f"command line: {said}")


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: []\n", True),
        ("kind: EndpointPickerConfig", True),
        (FILE, False),
        ("pools: 5", False),
        ("", False),
        ("[kind]", False),
        ("{", False),
    ],
)
def test_the_configuration_of_another_picker_is_told_from_a_wrong_one_of_ours(
    text: str, foreign: bool
) -> None:
    assert is_foreign(text) is foreign


def test_with_its_own_certificate_a_picker_shares_in_plaintext_or_says_how() -> None:
    text = (
        "sharing: {{listen: '0.0.0.0:9004', service: 'replicas:9004', plaintext: {chosen}}}\n"
        "pools: [{{name: a, endpoints: {{static: ['10.0.0.1:80']}}}}]\n"
    )
    config = settings(Flags(), base(text.format(chosen="true")))
    assert config.tls == TlsConfig(self_signed=True)
    assert config.sharing is not None
    assert config.sharing.plaintext
    said = refused(Flags(), base(text.format(chosen="false")))
    assert said.startswith("command line: tls.selfSigned: excludes sharing by TLS")
    assert "sharing.plaintext: true" in said

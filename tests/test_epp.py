"""`extproc epp` as a process, started as Deployments start the reference Endpoint Picker."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from google.protobuf.struct_pb2 import Struct
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.server import SERVICE
from tests.certificates import Authority, Mounted
from tests.test_serve import free_ports

ENDPOINTS = ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000"]
PIN = "x-gateway-destination-endpoint"


class Epp:
    """A running picker. Its JSON log is read on the side, so that it never waits for a reader."""

    def __init__(self, process: subprocess.Popen[str], ports: list[int]) -> None:
        self.process = process
        self.grpc, self.health, self.metrics = ports
        self.log: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.log.append(json.loads(line) if line.startswith("{") else {"event": line})
                self._changed.notify_all()

    def wait_for(self, event: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((line for line in self.log if line["event"].startswith(event)), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, 60), self.log
        line = found()
        assert line is not None
        return line

    def healthy(self, service: str) -> bool:
        with grpc.insecure_channel(f"127.0.0.1:{self.health}") as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=10
            )
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    @contextmanager
    def channel(self, trusted: bytes | None, name: str = "localhost") -> Iterator[Any]:
        address = f"127.0.0.1:{self.grpc}"
        if trusted is None:
            with grpc.insecure_channel(address) as channel:
                yield channel
        else:
            options = [("grpc.ssl_target_name_override", name)]
            with grpc.secure_channel(address, grpc.ssl_channel_credentials(trusted), options) as channel:
                yield channel


@contextmanager
def running(*flags: str | Path, **environment: str) -> Iterator[Epp]:
    ports = free_ports(3)
    command = [sys.executable, "-m", "extproc", "epp", *map(str, flags), "--zap-encoder", "json"]
    named = ("--grpc-port", "--grpc-health-port", "--metrics-port")
    command += [part for flag, port in zip(named, ports, strict=True) for part in (flag, str(port))]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            epp = Epp(process, ports)
            epp.wait_for("serving")
            yield epp
        finally:
            process.kill()


def request(headers: dict[str, str] | None = None, subset: Sequence[str] | None = None) -> ProcessingRequest:
    """A request without a body."""
    message = ProcessingRequest()
    message.request_headers.end_of_stream = True
    for key, value in {":path": "/v1/models", **(headers or {})}.items():
        message.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    if subset is not None:
        hint = Struct()
        hint.update({f"{PIN}-subset": list(subset)})
        message.metadata_context.filter_metadata["envoy.lb.subset_hint"].CopyFrom(hint)
    return message


def served(endpoint: str) -> ProcessingRequest:
    """The response's headers, from a gateway that says who served."""
    message = ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    struct = Struct()
    struct.update({f"{PIN}-served": endpoint})
    message.metadata_context.filter_metadata["envoy.lb"].CopyFrom(struct)
    return message


def ask(channel: Any, *messages: ProcessingRequest) -> list[Any]:
    process = channel.stream_stream(
        f"/{SERVICE}/Process",
        request_serializer=ProcessingRequest.SerializeToString,
        response_deserializer=ProcessingResponse.FromString,
    )
    return list(process(iter(messages), timeout=20))


def pinned(reply: Any) -> list[str]:
    """The endpoints of a pin, which header and metadata agree on."""
    (option,) = reply.request_headers.response.header_mutation.set_headers
    metadata = reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields[PIN].string_value
    assert (option.header.key, option.header.raw_value.decode()) == (PIN, metadata)
    return str(metadata).split(",")


def test_a_deployment_of_the_reference_picker_runs_with_its_own_flags_and_configuration(
    tmp_path: Path,
) -> None:
    config = tmp_path / "epp-config.yaml"
    config.write_text("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: []\n")
    authority = Authority()
    mounted = Mounted(tmp_path / "certs", authority.issue(["epp.llm.svc"]))
    flags: list[str | Path] = [
        *("--pool-name", "llama", "--pool-namespace", "llm", "--endpoints", ",".join(ENDPOINTS)),
        *("--config-file", config, "--cert-path", mounted.cert.parent, "-v=4", "-pool-group"),
        *("inference.networking.k8s.io", "--metrics-endpoint-auth=false", "--tracing=false"),
        *("--refresh-metrics-interval", "50ms", "--enable-cert-reload", "--secure-serving"),
    ]
    with running(*flags) as epp:
        said = [line["event"] for line in epp.log if line["level"] == "warning"]
        assert said == [
            "flag --metrics-endpoint-auth is not known; ignored",
            "flag --tracing is not known; ignored",
            "flag --refresh-metrics-interval is not known; ignored",
            f"{config} is the configuration of another Endpoint Picker; ignored",
        ]
        assert epp.wait_for("serving")["pools"] == ["llm/llama"]
        services = ("liveness", "readiness", "inference-extension", SERVICE, "")
        assert {service: epp.healthy(service) for service in services} == dict.fromkeys(services, True)
        with epp.channel(authority.pem, "epp.llm.svc") as channel:
            (reply,) = ask(channel, request())
            assert set(pinned(reply)) == set(ENDPOINTS)
            (reply,) = ask(channel, request(subset=["[fd00:0::3]:8000", "10.0.0.1"]))
            assert set(pinned(reply)) == {"10.0.0.1:8000", "[fd00::3]:8000"}
            for subset in ([], ["10.9.9.9:8000"]):
                (reply,) = ask(channel, request(subset=subset))
                assert reply.immediate_response.status.code == 503
            forged = {"test-epp-endpoint-selection": "10.0.0.2", f"{PIN}-subset": "10.0.0.2:8000", PIN: "x"}
            (reply, _) = ask(channel, request(forged), served("10.0.0.1:8000"))
            assert set(pinned(reply)) == set(ENDPOINTS)
        epp.process.send_signal(signal.SIGTERM)
        assert epp.process.wait(20) == 0


def test_by_default_any_gateway_that_does_not_ask_for_a_name_is_served_by_tls() -> None:
    with running("--endpoints", ENDPOINTS[0]) as epp:
        shown = ssl.get_server_certificate(("127.0.0.1", epp.grpc), timeout=20)
        with epp.channel(shown.encode()) as channel:
            (reply,) = ask(channel, request())
        assert pinned(reply) == ENDPOINTS[:1]


def test_the_conformance_suite_steers_by_a_header_and_hears_who_served() -> None:
    flags = ["--endpoints", ",".join(ENDPOINTS), "--secure-serving=false"]
    with running(*flags, EXTPROC_EPP_CONFORMANCE="1") as epp:
        assert epp.wait_for("conformance: a header that any client can send")["level"] == "warning"
        with epp.channel(None) as channel:
            steered = {"test-epp-endpoint-selection": "10.0.0.2, 10.0.0.1:8000"}
            pick, answer = ask(channel, request(steered, subset=[ENDPOINTS[2]]), served("10.0.0.1:8000"))
            assert set(pinned(pick)) == {"10.0.0.1:8000", "10.0.0.2:8000"}
            (option,) = answer.response_headers.response.header_mutation.set_headers
            assert option.header.key == "x-conformance-test-served-endpoint"
            assert option.header.raw_value == b"10.0.0.1:8000"
            (pick,) = ask(channel, request({"test-epp-endpoint-selection": "10.0.0.9"}))
            assert pick.immediate_response.status.code == 503
            (pick,) = ask(channel, request(subset=[ENDPOINTS[2]]))
            assert pinned(pick) == ENDPOINTS[2:]


def test_a_configuration_of_ours_is_followed_under_the_flags(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    text = "pools: [{name: x, strategy: RANDOM, endpoints: {static: ['10.0.0.9:80']}}]\n"
    path.write_text(text)
    flags: list[str | Path] = ["--endpoints", ENDPOINTS[0], "--secure-serving=false", "--config-file", path]
    with running(*flags) as epp:
        path.write_text(text + "drainTimeout: 1s\n")
        epp.wait_for("configuration reloaded")
        with epp.channel(None) as channel:
            (reply,) = ask(channel, request())
        assert pinned(reply) == ENDPOINTS[:1]
        path.write_text("pools: 5\n")
        epp.wait_for("configuration not taken")
        epp.process.send_signal(signal.SIGTERM)
        assert epp.wait_for("draining")["seconds"] == 1


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ([], 2, "--pool-name: is missing"),
        (
            ["--endpoints", "10.0.0.1:80", "--cert-path", "/nonexistent"],
            2,
            "/nonexistent/tls.crt: no such file",
        ),
        (["--endpoints", "10.0.0.1:80", "--config-file", "/nonexistent"], 2, "/nonexistent: no such file"),
        (["--endpoints", "10.0.0.1:80", "--config-text", "pols: 5"], 2, "--config-text:1: pols: unknown key"),
        (["--endpoints", "10.0.0.1:80", "--grpc-port", "x"], 2, "'x' is not a valid integer range"),
        (["--pool-name", "a", "--endpoint-target-ports", "80,b"], 2, "must be ports with commas"),
    ],
)
def test_a_command_line_that_cannot_be_run_is_said(flags: list[str], code: int, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "extproc", "epp", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == code
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr

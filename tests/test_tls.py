"""TLS of the listener, over real connections, and what is said of files that cannot be used."""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from extproc.address import Address
from extproc.certificates import TlsError, read_authorities, read_pair, self_signed
from extproc.config import TlsConfig
from extproc.metrics import TlsMetrics
from extproc.server import SERVICE, Server
from extproc.stream import Exchange
from extproc.tls import Certificates
from tests.certificates import DAY, Authority, Mounted, Pair

NAME = "router.example"


class Listener:
    """A running ext_proc server with TLS, and its health port."""

    def __init__(self, certificates: Certificates, registry: CollectorRegistry) -> None:
        self.certificates = certificates
        self._registry = registry
        self.address = Address("", 0)
        self.health = Address("", 0)

    def count(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(name, labels) or 0.0

    async def serial(self) -> int:
        """The serial number of the certificate that a new connection is shown."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection(self.address.host, self.address.port, ssl=context)
        shown = writer.get_extra_info("ssl_object")
        assert shown.selected_alpn_protocol() == "h2"
        writer.close()
        return x509.load_der_x509_certificate(shown.getpeercert(binary_form=True)).serial_number

    def channel(self, trusted: bytes, client: Pair | None = None) -> Any:
        # A pool of connections of its own: else gRPC gives two channels with equal options one connection.
        return grpc.aio.secure_channel(
            str(self.address),
            grpc.ssl_channel_credentials(
                trusted, client.key if client else None, client.certificate if client else None
            ),
            [("grpc.ssl_target_name_override", NAME), ("grpc.use_local_subchannel_pool", 1)],
        )


@asynccontextmanager
async def listening(config: TlsConfig) -> AsyncIterator[Listener]:
    registry = CollectorRegistry()
    certificates = Certificates(config, TlsMetrics(registry))
    listener = Listener(certificates, registry)
    server = Server(
        lambda _metadata: Exchange(lambda _question: None, lambda: None),
        max_message_bytes=1 << 20,
        on_stream=lambda _change: None,
        on_error=lambda _kind: None,
    )
    any_port = Address("127.0.0.1", 0)
    listener.address, listener.health = await server.start(
        any_port, any_port, certificates.server_credentials()
    )
    await server.set_ready(True)
    following = asyncio.create_task(certificates.follow())
    try:
        yield listener
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await server.drain(0, 0)


def exchange(channel: Any) -> Any:
    return channel.stream_stream(
        f"/{SERVICE}/Process",
        request_serializer=ProcessingRequest.SerializeToString,
        response_deserializer=ProcessingResponse.FromString,
    )()


async def answered(call: Any) -> bool:
    """Whether the next message on this stream is answered."""
    message = ProcessingRequest()
    message.request_body.body = b"{}"
    await call.write(message)
    reply = await call.read()
    return bool(reply.HasField("request_body"))


async def served(channel: Any) -> bool:
    """Whether a new connection is served; False if TLS refuses it."""
    try:
        return await answered(exchange(channel))
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  what is waited for is a metric, which sets no event
            await asyncio.sleep(0.01)


def files(mounted: Mounted, *, mutual: bool = False) -> TlsConfig:
    return TlsConfig(cert=mounted.cert, key=mounted.key, client_ca=mounted.ca if mutual else None)


# --- What connections get ---


async def test_a_gateway_that_trusts_the_authority_is_served_and_plaintext_is_not(tmp_path: Path) -> None:
    authority = Authority()
    async with listening(files(Mounted(tmp_path, authority.issue([NAME])))) as listener:
        async with listener.channel(authority.pem) as channel:
            assert await served(channel)
        async with listener.channel(Authority().pem) as channel:
            assert not await served(channel)
        async with grpc.aio.insecure_channel(str(listener.address)) as channel:
            assert not await served(channel)


async def test_kubelet_asks_for_health_in_plaintext_and_a_gateway_by_tls(tmp_path: Path) -> None:
    authority = Authority()
    pair = authority.issue([NAME])
    question = health_pb2.HealthCheckRequest(service=SERVICE)
    async with listening(files(Mounted(tmp_path, pair, authority.pem), mutual=True)) as listener:
        async with grpc.aio.insecure_channel(str(listener.health)) as channel:
            probe = await health_pb2_grpc.HealthStub(channel).Check(question)
        async with listener.channel(authority.pem, authority.issue(["gateway"])) as channel:
            check = await health_pb2_grpc.HealthStub(channel).Check(question)
    assert probe.status == check.status == health_pb2.HealthCheckResponse.SERVING


async def test_with_a_client_ca_only_its_clients_are_served(tmp_path: Path) -> None:
    authority, gateways = Authority(), Authority("gateways")
    mounted = Mounted(tmp_path, authority.issue([NAME]), gateways.pem)
    async with listening(files(mounted, mutual=True)) as listener:
        for client, expected in [
            (gateways.issue(["gateway"]), True),
            (None, False),
            (authority.issue(["gateway"]), False),
            (gateways.issue(["gateway"], begins=-2 * DAY, ends=-DAY), False),
        ]:
            async with listener.channel(authority.pem, client) as channel:
                assert await served(channel) is expected


async def test_a_renewed_certificate_serves_new_connections_while_old_streams_go_on(tmp_path: Path) -> None:
    authority = Authority()
    old, new = authority.issue([NAME]), authority.issue([NAME], ends=2 * DAY)
    mounted = Mounted(tmp_path, old)
    async with listening(files(mounted)) as listener, listener.channel(authority.pem) as before:
        running = exchange(before)
        assert await answered(running)
        assert await listener.serial() == old.serial
        mounted.swap(new)
        await until(lambda: listener.count("extproc_tls_reloads_total", result="success") == 1)
        assert await listener.serial() == new.serial
        assert await answered(running)
        async with listener.channel(authority.pem) as after:
            assert await served(after)
        left = listener.count("extproc_tls_certificate_remaining_seconds")
        assert abs(left - 2 * DAY.total_seconds()) < 60


async def test_a_new_authority_of_clients_is_taken_over(tmp_path: Path) -> None:
    authority, first, second = Authority(), Authority("first"), Authority("second")
    pair = authority.issue([NAME])
    mounted = Mounted(tmp_path, pair, first.pem)
    async with listening(files(mounted, mutual=True)) as listener:
        mounted.swap(pair, second.pem)
        await until(lambda: listener.count("extproc_tls_reloads_total", result="success") == 1)
        async with listener.channel(authority.pem, second.issue(["gateway"])) as channel:
            assert await served(channel)
        async with listener.channel(authority.pem, first.issue(["gateway"])) as channel:
            assert not await served(channel)


async def test_a_pair_that_does_not_match_keeps_the_old_one_until_it_does(tmp_path: Path) -> None:
    authority = Authority()
    old, new = authority.issue([NAME]), authority.issue([NAME])
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(old.certificate)
    key.write_bytes(old.key)
    async with listening(TlsConfig(cert=cert, key=key)) as listener:
        cert.write_bytes(new.certificate)
        await until(lambda: listener.count("extproc_tls_reloads_total", result="failure") == 1)
        assert await listener.serial() == old.serial
        async with listener.channel(authority.pem) as channel:
            assert await served(channel)
        key.write_bytes(new.key)
        await until(lambda: listener.count("extproc_tls_reloads_total", result="success") == 1)
        assert await listener.serial() == new.serial


async def test_what_cannot_be_used_is_said_once_and_again_when_it_is_something_else(tmp_path: Path) -> None:
    pair = Authority().issue([NAME])
    mounted = Mounted(tmp_path, pair)
    registry = CollectorRegistry()
    certificates = Certificates(files(mounted), TlsMetrics(registry))

    def refused() -> float | None:
        return registry.get_sample_value("extproc_tls_reloads_total", {"result": "failure"})

    mounted.swap(Pair(b"-----BEGIN CERTIFICATE-----\nMIIB", pair.key))
    await certificates.look()
    await certificates.look()
    assert refused() == 1
    mounted.swap(Pair(pair.certificate, b""))
    await certificates.look()
    assert refused() == 2
    mounted.swap(pair)
    await certificates.look()
    assert refused() == 2
    assert registry.get_sample_value("extproc_tls_reloads_total", {"result": "success"}) == 0


async def test_a_certificate_that_expires_while_it_serves_is_said_and_measured(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    now = time.time()
    certificates = Certificates(
        files(Mounted(tmp_path, Authority().issue([NAME]))), TlsMetrics(registry), lambda: now
    )
    now += 2 * DAY.total_seconds()
    await certificates.look()
    assert registry.get_sample_value("extproc_tls_reloads_total", {"result": "failure"}) == 1
    remaining = registry.get_sample_value("extproc_tls_certificate_remaining_seconds")
    assert remaining is not None
    assert -DAY.total_seconds() - 60 < remaining < -DAY.total_seconds() + 60


async def test_a_self_signed_pair_needs_no_files_and_is_a_new_one_each_time() -> None:
    async with listening(TlsConfig(self_signed=True)) as one, listening(TlsConfig(self_signed=True)) as other:
        assert await one.serial() != await other.serial()
        async with grpc.aio.secure_channel(
            str(one.address),
            grpc.ssl_channel_credentials(one.certificates.current.chain),
            [("grpc.ssl_target_name_override", "localhost")],
        ) as channel:
            assert await served(channel)
        with pytest.raises(TlsError, match=r"selfSigned .* give tls\.cert, tls\.key and tls\.clientCa"):
            one.certificates.channel_credentials()


@pytest.mark.parametrize("mutual", [True, False])
@pytest.mark.parametrize("names", [[NAME], ["*.router.example"], ["10.0.0.1"]])
async def test_replicas_with_the_same_files_can_call_each_other(
    tmp_path: Path, names: list[str], mutual: bool
) -> None:
    authority = Authority()
    mounted = Mounted(tmp_path, authority.issue(names), authority.pem)
    async with listening(files(mounted, mutual=mutual)) as listener:
        own = listener.certificates
        credentials = own.channel_credentials()
        assert own.channel_credentials() is credentials
        async with grpc.aio.secure_channel(
            str(listener.address), credentials, [("grpc.ssl_target_name_override", own.peer_name)]
        ) as channel:
            assert await served(channel)
        mounted.swap(authority.issue(names), authority.pem)
        await until(lambda: own.channel_credentials() is not credentials)


# --- What is said of files ---


def written(directory: Path, pair: Pair) -> tuple[Path, Path]:
    cert, key = directory / "tls.crt", directory / "tls.key"
    cert.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    return cert, key


@pytest.mark.parametrize("field", ["cert", "key"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"no such file; name a PEM file"),
        (b"", r"is empty; it must hold PEM"),
        (b" \n", r"is empty"),
        (b"\x30\x82\x01", r"is not a .* in PEM"),
        (b"x" * (1024 * 1024 + 1), r"is larger than 1048576 bytes"),
    ],
)
def test_a_file_that_holds_no_pem_is_named(
    tmp_path: Path, field: str, content: bytes | None, said: str
) -> None:
    cert, key = written(tmp_path, Authority().issue())
    path = cert if field == "cert" else key
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(TlsError, match=rf"tls\.{field}: {path}: {said}"):
        read_pair(cert, key, time.time())


def test_a_directory_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    _, key = written(tmp_path, Authority().issue())
    with pytest.raises(TlsError, match=rf"tls\.cert: {tmp_path}: cannot be read: Is a directory"):
        read_pair(tmp_path, key, time.time())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    cert, key = written(tmp_path, Authority().issue())
    key.chmod(0)
    with pytest.raises(TlsError, match=rf"tls\.key: {key}: may not be read"):
        read_pair(cert, key, time.time())


def test_cert_and_key_in_each_others_place_are_told_apart(tmp_path: Path) -> None:
    cert, key = written(tmp_path, Authority().issue())
    with pytest.raises(TlsError, match=rf"tls\.cert: {key}: holds a key; name the certificate's file"):
        read_pair(key, cert, time.time())


def test_a_key_of_another_certificate_is_told(tmp_path: Path) -> None:
    cert, key = written(tmp_path, Authority().issue())
    key.write_bytes(Authority().issue().key)
    with pytest.raises(TlsError, match=rf"tls\.key: {key}: is not the key of the certificate in .*{cert}"):
        read_pair(cert, key, time.time())


def test_a_chain_in_the_wrong_order_is_told(tmp_path: Path) -> None:
    authority = Authority()
    pair = authority.issue()
    cert, key = written(tmp_path, pair)
    cert.write_bytes(authority.pem + pair.certificate)
    with pytest.raises(TlsError, match=r"put that one first and its intermediates after it"):
        read_pair(cert, key, time.time())
    cert.write_bytes(pair.certificate + authority.pem)
    assert read_pair(cert, key, time.time()).names == ("router.example",)


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [(-2 * DAY, -DAY, r"expired on \d{4}-.* UTC; renew it"), (DAY, 2 * DAY, r"is not valid before")],
)
def test_a_certificate_out_of_its_time_is_told(
    tmp_path: Path, begins: datetime.timedelta, ends: datetime.timedelta, said: str
) -> None:
    cert, key = written(tmp_path, Authority().issue(begins=begins, ends=ends))
    with pytest.raises(TlsError, match=rf"tls\.cert: {cert}: {said}"):
        read_pair(cert, key, time.time())


@pytest.mark.parametrize(
    "key", [ec.generate_private_key(ec.SECP521R1()), ec.generate_private_key(ec.SECP256K1())]
)
def test_a_key_that_gateways_refuse_is_refused(tmp_path: Path, key: CertificateIssuerPrivateKeyTypes) -> None:
    cert, path = written(tmp_path, Authority().issue(key=key))
    with pytest.raises(TlsError, match=r"make an RSA key, or an ECDSA one on the curve P-256 or P-384"):
        read_pair(cert, path, time.time())


def test_an_ed25519_key_and_an_encrypted_one_are_refused(tmp_path: Path) -> None:
    cert, path = written(tmp_path, Authority().issue())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    path.write_bytes(ed25519.Ed25519PrivateKey.generate().private_bytes(*form, serialization.NoEncryption()))
    with pytest.raises(TlsError, match="is of a kind that gRPC and Envoy refuse"):
        read_pair(cert, path, time.time())
    encrypted = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(encrypted.private_bytes(*form, serialization.BestAvailableEncryption(b"secret")))
    with pytest.raises(TlsError, match=r"is encrypted; write it without a passphrase"):
        read_pair(cert, path, time.time())


def test_authorities_that_are_none_are_told(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_bytes(b"not PEM")
    with pytest.raises(TlsError, match=rf"tls\.clientCa: {path}: is not a certificate in PEM"):
        read_authorities(path)


_WHOLE = Authority().issue()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    part=st.sampled_from(["certificate", "key"]),
    at=st.integers(0, 2000),
    noise=st.binary(max_size=40),
    cut=st.booleans(),
)
def test_a_damaged_file_is_taken_or_an_error_that_names_it(
    tmp_path: Path, part: str, at: int, noise: bytes, cut: bool
) -> None:
    content: bytes = getattr(_WHOLE, part)
    damaged = content[:at] + noise + (b"" if cut else content[at + len(noise) :])
    cert, key = written(tmp_path, _WHOLE._replace(**{part: damaged}))
    said = complaint(cert, key)
    assert not said or said.startswith((f"tls.cert: {cert}: ", f"tls.key: {key}: "))


def complaint(cert: Path, key: Path) -> str:
    """What is said of the pair; empty if it is taken."""
    try:
        read_pair(cert, key, time.time())
    except TlsError as error:
        return str(error)
    return ""


def test_a_self_signed_pair_is_valid_now_and_for_years() -> None:
    now = time.time()
    material = self_signed(now, "router-0")
    (certificate,) = x509.load_pem_x509_certificates(material.chain)
    assert certificate.not_valid_before_utc.timestamp() < now - 60
    assert material.expires > now + 9 * 365 * 86400
    assert material.names == ("router-0", "localhost")


# --- The command ---


def test_serve_ends_with_2_and_says_what_is_wrong_with_a_certificate(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(
        "tls: {cert: tls.crt, key: tls.key}\npools: [{name: a, endpoints: {static: ['10.0.0.1:80']}}]\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "extproc", "serve", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert f"tls.cert: {tmp_path}/tls.crt: no such file" in ended.stderr
    assert "Traceback" not in ended.stderr

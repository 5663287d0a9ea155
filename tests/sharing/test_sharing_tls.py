"""Replicas know each other by certificates, and nobody else is let in."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from extproc.config import TlsConfig
from extproc.metrics import TlsMetrics
from extproc.sharing.channels import SERVICE
from extproc.tls import Certificates
from tests.certificates import Authority, Mounted, Pair
from tests.envoy.process import eventually, free_address
from tests.sharing.replicas import Node, running

NAME = "replica.example"


class Issued:
    """Certificates of one authority, in files."""

    def __init__(self, directory: Path, authority: Authority, name: str = NAME) -> None:
        self.pair = authority.issue([name])
        self.files = Mounted(directory, self.pair, authority.pem)
        files = TlsConfig(cert=self.files.cert, key=self.files.key, client_ca=self.files.ca)
        self.certificates = Certificates(files, TlsMetrics(CollectorRegistry()))


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def pair_of_nodes(one: Certificates | None, other: Certificates | None) -> tuple[Node, Node]:
    addresses = [free_address(), free_address()]
    first, second = (
        Node(address, addresses, certificates=certificates)
        for address, certificates in zip(addresses, (one, other), strict=True)
    )
    return first, second


async def is_unreachable(node: Node) -> None:
    """Waits until the other one was tried and has not answered."""
    await eventually(
        lambda: node.count("peers", state="unreachable") == 1 and node.peers == 0, "the other is unreachable"
    )


async def test_replicas_of_one_authority_share_by_tls_and_without_a_warning(
    tmp_path: Path, authority: Authority
) -> None:
    made = [Issued(tmp_path / name, authority).certificates for name in "ab"]
    first, second = pair_of_nodes(*made)
    with capture_logs() as said:
        async with running(first, second):
            await first.meets(1)
            first.tell("gold")
            await second.hears("gold")
    assert [entry for entry in said if entry["log_level"] == "warning"] == []


async def test_a_replica_with_a_certificate_of_another_authority_is_no_peer(
    tmp_path: Path, authority: Authority
) -> None:
    one = Issued(tmp_path / "a", authority).certificates
    other = Issued(tmp_path / "b", Authority("stranger")).certificates
    first, second = pair_of_nodes(one, other)
    async with running(first, second):
        for node in (first, second):
            await is_unreachable(node)
            node.tell("gold")
        await eventually(
            lambda: all(node.count("dropped_picks_total", reason="undelivered") for node in (first, second)),
            "both give up",
        )
        assert first.count("received_bytes_total") == second.count("received_bytes_total") == 0


async def test_a_certificate_for_another_name_is_no_replicas(tmp_path: Path, authority: Authority) -> None:
    one = Issued(tmp_path / "a", authority).certificates
    gateway = Issued(tmp_path / "b", authority, "gateway.example").certificates
    first, second = pair_of_nodes(one, gateway)
    async with running(first, second):
        await is_unreachable(first)


async def test_plaintext_and_tls_do_not_meet(tmp_path: Path, authority: Authority) -> None:
    first, second = pair_of_nodes(Issued(tmp_path / "a", authority).certificates, None)
    async with running(first, second):
        await is_unreachable(first)
        await is_unreachable(second)
        second.tell("gold")
        await eventually(lambda: second.count("dropped_picks_total", reason="undelivered") > 0, "it gives up")
        assert first.notes.learnt == []


async def test_in_plaintext_by_choice_replicas_share_whatever_certificates_they_have(
    tmp_path: Path, authority: Authority
) -> None:
    addresses = [free_address(), free_address()]
    own = Certificates(TlsConfig(self_signed=True), TlsMetrics(CollectorRegistry()))
    issued = Issued(tmp_path / "a", authority).certificates
    first, second = (
        Node(address, addresses, certificates=certificates, plaintext=True)
        for address, certificates in zip(addresses, (own, issued), strict=True)
    )
    async with running(first, second):
        await first.meets(1)
        first.tell("gold")
        await second.hears("gold")
        second.tell("rum")
        await first.hears("rum")


@pytest.mark.parametrize("client", ["plaintext", "no certificate", "of another authority"])
async def test_a_client_without_a_certificate_of_the_authority_gets_no_answer(
    tmp_path: Path, authority: Authority, client: str
) -> None:
    first, _ = pair_of_nodes(Issued(tmp_path / "a", authority).certificates, None)
    stranger: Pair | None = Authority("stranger").issue([NAME]) if client == "of another authority" else None
    secret = grpc.ssl_channel_credentials(
        authority.pem, stranger.key if stranger else None, stranger.certificate if stranger else None
    )
    options = [("grpc.ssl_target_name_override", NAME), ("grpc.use_local_subchannel_pool", 1)]
    async with running(first):
        if client == "plaintext":
            channel = grpc.aio.insecure_channel(first.address, options)
        else:
            channel = grpc.aio.secure_channel(first.address, secret, options)
        async with channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"/{SERVICE}/Tell")(b"", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_renewed_certificates_are_taken_over_without_losing_the_peer(
    tmp_path: Path, authority: Authority
) -> None:
    one, other = (Issued(tmp_path / name, authority) for name in "ab")
    first, second = pair_of_nodes(one.certificates, other.certificates)
    async with running(first, second):
        await first.meets(1)
        before = one.certificates.channel_credentials()
        assert first.replica is not None
        peer = first.replica._peers.connected[0]
        one.files.swap(authority.issue([NAME]), authority.pem)
        await one.certificates.look()
        renewed = one.certificates.channel_credentials()
        assert renewed is not before
        first.tell("gold")
        await eventually(
            lambda: peer._opened is not None and peer._opened.credentials is renewed,
            "it calls with the new one",
        )
        first.tell("rum")
        for word in ("gold", "rum"):
            await second.hears(word)
        assert first.peers == 1
        assert first.count("dropped_picks_total", reason="undelivered") == 0

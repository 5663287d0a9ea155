"""Replicas that share their picks, over real connections, when all is well and when it is not."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from extproc.address import Address
from extproc.server import ListenError
from extproc.sharing.batches import MAX_MESSAGE_BYTES
from extproc.sharing.channels import SERVICE
from extproc.sharing.names import Names, look_up
from extproc.sharing.picks_pb2 import Batch, Receipt
from tests.envoy.process import HOST, eventually, free_address
from tests.sharing.replicas import FAST, Network, Node, nodes, running
from tests.sharing.traffic import ENDPOINTS


class TestWhatAReplicaPicks:
    async def test_is_heard_by_every_other_one_once_and_by_itself_never(self) -> None:
        async with nodes(3) as (a, b, c):
            a.tell("gold")
            b.tell("rum", ENDPOINTS[1])
            for node, words in ((a, ["rum"]), (b, ["gold"]), (c, ["gold", "rum"])):
                for word in words:
                    await node.hears(word)
            # What was heard is told by nobody: a third batch later there is still one of each.
            c.tell("map")
            await a.hears("map")
            await b.hears("map")
            assert [(n.heard("gold"), n.heard("rum"), n.heard("map")) for n in (a, b, c)] == [
                (0, 1, 1),
                (1, 0, 1),
                (1, 1, 0),
            ]

    async def test_is_entered_with_its_endpoint_and_as_old_as_it_is(self) -> None:
        async with nodes(2) as (a, b):
            picked = asyncio.get_running_loop().time()
            a.tell("gold", ENDPOINTS[2])
            await b.hears("gold")
            ((address, _, at),) = b.notes.sent
            assert address == ENDPOINTS[2]
            # One clock here. Ages are in whole milliseconds, and the way from a to b makes it seem younger.
            assert -0.002 < at - picked < 1.0

    async def test_is_counted_where_it_is_told_and_where_it_is_heard(self) -> None:
        async with nodes(2) as (a, b):
            for word in ("gold", "rum"):
                a.tell(word)
            await b.hears("rum")
            await eventually(lambda: a.count("sent_picks_total") == 2, "both are confirmed")
            assert b.count("heard_picks_total", pool="llama") == 2
            assert a.count("sent_bytes_total") == b.count("received_bytes_total") > 0
            assert a.count("lag_seconds_count") >= 1
            assert a.count("peers", state="connected") == 1
            assert a.count("peers", state="unreachable") == 0

    async def test_is_told_to_nobody_where_no_pool_learns_from_it(self) -> None:
        async with nodes(2) as (a, b):
            assert a.replica is not None
            a.replica._memories = dict
            a.tell("gold")
            await eventually(lambda: len(a.replica._outbox) == 0, "the batch is made")  # type: ignore[union-attr]
            a.replica._memories = lambda: {"llama": a.notes}
            a.tell("rum")
            await b.hears("rum")
            assert b.heard("gold") == 0

    async def test_ten_thousand_of_them_in_one_batch_are_all_heard(self) -> None:
        async with nodes(2) as (a, b):
            for number in range(10_000):
                a.tell(f"{number} pieces of gold")
            await eventually(lambda: len(b.notes.learnt) == 10_000, "all are heard", 60)
            assert a.count("dropped_picks_total", reason="outbox_full") == 0


class TestWhoIsThere:
    async def test_a_replica_knows_itself_in_the_list_and_calls_nobody(self) -> None:
        async with nodes(1) as (only,):
            await eventually(lambda: only.count("received_bytes_total") == 0, "nothing was sent")
            only.tell("gold")
            assert only.count("peers", state="connected") == only.count("peers", state="unreachable") == 0
            assert only.count("dropped_picks_total", reason="undelivered") == 0

    async def test_one_with_two_addresses_hears_everything_once(self) -> None:
        b = Node(free_address(), [free_address()])
        async with Network(b.address) as second:
            a = Node(free_address(), [b.address, second.address])
            async with running(b, a):
                await eventually(
                    lambda: second.backward > 0 and a.count("peers", state="unreachable") == 0,
                    "both addresses answer",
                )
                assert a.peers == 1
                for word in ("gold", "rum"):
                    a.tell(word)
                    await b.hears(word)
                assert (b.heard("gold"), b.heard("rum")) == (1, 1)

    async def test_one_that_joins_is_called_and_one_that_leaves_is_forgotten(self) -> None:
        listed: set[str] = set()

        async def names(_name: Address) -> frozenset[str]:
            return frozenset(listed)

        first, second = (Node(free_address(), ["replicas:1"], look_up=names) for _ in range(2))
        listed.add(first.address)
        async with running(first):
            await first.meets(0)
            listed.add(second.address)
            async with running(second):
                await first.meets(1)
                await second.meets(1)
                second.tell("gold")
                await first.hears("gold")
                listed.remove(second.address)
                await eventually(
                    lambda: (first.peers, first.count("peers", state="unreachable")) == (0, 0),
                    "the second is forgotten",
                )

    async def test_a_name_that_cannot_be_looked_up_keeps_its_addresses(self) -> None:
        answers: list[frozenset[str] | OSError] = [
            frozenset({"10.0.0.1:1"}),
            OSError("no answer"),
            frozenset(),
        ]

        async def next_answer(_name: Address) -> frozenset[str]:
            answer = answers.pop(0)
            if isinstance(answer, OSError):
                raise answer
            return answer

        names = Names([Address("replicas", 1)], next_answer)
        assert await names.addresses() == {"10.0.0.1:1"}
        with capture_logs() as said:
            assert await names.addresses() == {"10.0.0.1:1"}
        assert [entry["log_level"] for entry in said] == ["warning"]
        assert await names.addresses() == frozenset()

    async def test_a_name_without_an_address_is_said_once(self) -> None:
        async def nothing(_name: Address) -> frozenset[str]:
            return frozenset()

        names = Names([Address("replicas", 1)], nothing)
        with capture_logs() as said:
            for _ in range(3):
                assert await names.addresses() == frozenset()
        assert [(entry["log_level"], entry["name"]) for entry in said] == [("info", "replicas:1")]

    async def test_a_proxy_of_the_environment_is_no_way_to_a_peer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://{free_address()}")
        async with nodes(2) as (a, b):
            a.tell("gold")
            await b.hears("gold")

    async def test_names_are_looked_up_by_the_systems_resolver(self) -> None:
        assert "127.0.0.1:9004" in await look_up(Address("localhost", 9004))
        assert await look_up(Address("10.0.0.1", 9004)) == {"10.0.0.1:9004"}
        assert await look_up(Address("fd00::1", 9004)) == {"[fd00::1]:9004"}


class TestWhenTheNetworkIsBroken:
    async def test_a_replica_that_is_cut_off_goes_on_and_is_called_again_when_it_is_back(self) -> None:
        b = Node(free_address(), [free_address()])
        async with Network(b.address) as network:
            a = Node(free_address(), [network.address])
            async with running(b, a):
                await a.meets(1)
                await network.cut()
                await a.meets(0)
                a.tell("gold")
                await eventually(
                    lambda: a.count("dropped_picks_total", reason="undelivered") == 1, "the pick is given up"
                )
                await network.mend()
                await a.meets(1)
                a.tell("rum")
                await b.hears("rum")
                assert b.heard("gold") == 0

    async def test_a_stalled_peer_costs_a_bounded_number_of_batches_and_nobody_waits(self) -> None:
        b = Node(free_address(), [free_address()])
        c = Node(free_address(), [free_address()])
        async with Network(b.address) as network:
            a = Node(free_address(), [network.address, c.address], pace=FAST._replace(confirm=2.0))
            async with running(b, c, a):
                await a.meets(2)
                network.stall()
                for number in range(20):
                    a.tell(f"{number} pieces of gold")
                    await c.hears(f"{number} pieces of gold")
                assert a.count("dropped_picks_total", reason="peer_slow") >= 10
                await eventually(
                    lambda: a.count("peers", state="unreachable") == 1, "the stalled one is given up"
                )
                await network.cut()
                await network.mend()
                await a.meets(2)
                a.tell("rum")
                await b.hears("rum")

    async def test_a_replica_that_starts_anew_is_known_by_its_new_instance(self) -> None:
        async with nodes(2) as (a, b):
            a.tell("gold")
            await b.hears("gold")
            await b.stop()
            await a.meets(0)
            await b.start()
            await a.meets(1)
            a.tell("rum")
            await b.hears("rum")

    async def test_what_answers_at_a_peers_address_may_be_anything(self) -> None:
        async def chatter(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        address = free_address()
        server = await asyncio.start_server(chatter, HOST, int(address.rsplit(":", 1)[1]))
        other = grpc.aio.server()
        strange = free_address()
        other.add_insecure_port(strange)
        await other.start()
        b = Node(free_address(), [free_address()])
        a = Node(free_address(), [address, strange, b.address])
        async with server, running(b, a):
            await a.meets(1)
            a.tell("gold")
            await b.hears("gold")
            assert a.count("peers", state="unreachable") == 2
        await other.stop(None)


class TestWhatAStrangerCanDo:
    async def call(self, node: Node, *messages: bytes) -> list[Receipt]:
        async with grpc.aio.insecure_channel(
            node.address, [("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            tell = channel.unary_unary(f"/{SERVICE}/Tell")
            return [Receipt.FromString(await tell(message)) for message in messages]

    async def test_bytes_that_are_no_batch_are_counted_and_change_nothing(self) -> None:
        async with nodes(2) as (a, b):
            await self.call(a, b"\xff" * 100, Batch(instance=9).SerializeToString())
            assert a.count("refused_messages_total", reason="malformed") == 1
            assert a.count("refused_messages_total", reason="other_scheme") == 1
            b.tell("gold")
            await a.hears("gold")

    async def test_a_message_that_is_too_large_is_refused_before_it_is_read(self) -> None:
        async with nodes(2) as (a, b):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await self.call(a, bytes(MAX_MESSAGE_BYTES + 1))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            b.tell("gold")
            await a.hears("gold")

    async def test_who_says_nothing_learns_only_who_answers(self) -> None:
        async with nodes(1) as (a,):
            first, second = await self.call(a, b"", b"")
            assert first.instance == second.instance != 0
            assert first.running_ms <= second.running_ms


async def test_every_metric_is_explained_and_named_by_its_unit() -> None:
    async with nodes(1) as (a,):
        families = list(text_string_to_metric_families(generate_latest(a.registry).decode()))
    assert len(families) > 8
    assert all(family.name.startswith("extproc_sharing_") for family in families)
    assert [family.name for family in families if not family.documentation.endswith(".")] == []


async def test_an_address_in_use_is_named() -> None:
    async with nodes(1) as (a,):
        second = Node(a.address, [a.address])
        with pytest.raises(ListenError, match=a.address):
            await second.start()


async def test_plaintext_is_warned_of_unless_it_stays_on_this_machine_or_was_chosen() -> None:
    with capture_logs() as said:
        async with nodes(1):
            pass
    assert [entry for entry in said if entry["log_level"] == "warning"] == []
    for chosen in (False, True):
        address = f"0.0.0.0:{free_address().rsplit(':', 1)[1]}"
        with capture_logs() as said:
            async with running(Node(address, [free_address()], plaintext=chosen)):
                pass
        warnings = [entry["event"] for entry in said if entry["log_level"] == "warning"]
        assert ["plaintext" in warning for warning in warnings] == ([] if chosen else [True])

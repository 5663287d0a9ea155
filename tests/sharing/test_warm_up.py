"""A replica that starts learns what another one knows."""

from __future__ import annotations

from itertools import pairwise

import grpc
import pytest
from structlog.testing import capture_logs

from extproc.pool.pool import Pool
from extproc.routing import build
from extproc.routing.prefix_aware import PrefixAware
from extproc.sharing import knowledge
from extproc.sharing.batches import read
from extproc.sharing.channels import SERVICE
from extproc.sharing.memory import PoolMemory
from extproc.sharing.picks_pb2 import Question
from tests.envoy.process import eventually, free_address
from tests.sharing.replicas import FAST, Network, Node, nodes, running
from tests.sharing.traffic import ENDPOINTS, Notes, pick


def taught(node: Node, prompts: int) -> None:
    for number in range(prompts):
        node.notes.learn(pick(f"{number} pieces of gold " * 200).keys, ENDPOINTS[number % 3])


async def test_it_learns_all_of_it_the_most_recent_last_and_enters_no_work() -> None:
    async with nodes(2) as (old, new):
        taught(old, 1000)
        new.ready()
        await eventually(lambda: len(new.notes.learnt) == 1000, "all is learnt")
        assert new.notes.learnt[-10:] == old.notes.learnt[-10:]
        assert sorted(new.notes.learnt) == sorted(old.notes.learnt)
        assert new.notes.sent == []
        assert new.count("warm_up_picks_total") == 1000


async def test_it_asks_the_replica_that_has_run_longest_and_no_other() -> None:
    addresses = [free_address() for _ in range(3)]
    first, second, new = (Node(address, addresses) for address in addresses)
    async with running(first):
        assert first.replica is not None
        first.replica._began -= 60.0
        taught(first, 3)
        async with running(second):
            await second.meets(1)
            taught(second, 5)
            async with running(new):
                await new.meets(2)
                new.ready()
                await eventually(lambda: len(new.notes.learnt) > 0, "something is learnt")
                assert len(new.notes.learnt) == 3


async def test_it_waits_until_its_own_pools_know_their_endpoints() -> None:
    async with nodes(2) as (old, new):
        taught(old, 2)
        new.notes.addresses = ()
        old.tell("rum")
        await eventually(
            lambda: new.count("dropped_picks_total", reason="unknown_endpoint") == 1,
            "a pick has come too early",
        )
        new.notes.addresses = ENDPOINTS
        new.ready()
        await eventually(lambda: len(new.notes.learnt) == 2, "the rest is learnt")


async def test_it_takes_what_came_when_the_answer_stops_half_way() -> None:
    old = Node(free_address(), [free_address()])
    async with Network(old.address) as network:
        new = Node(free_address(), [network.address], pace=FAST._replace(answer=1.0, confirm=30.0))
        async with running(old, new):
            taught(old, 3000)
            await new.meets(1)
            network.backward_limit = network.backward + 200_000
            with capture_logs() as said:
                new.ready()
                await eventually(lambda: any(e["event"] == "learnt from a peer" for e in said), "it gives up")
            assert 0 < len(new.notes.learnt) < 3000
            assert [e["failed"] for e in said if e["event"] == "learnt from a peer"] == ["DEADLINE_EXCEEDED"]


async def test_without_anybody_there_it_starts_all_the_same_and_says_so() -> None:
    with capture_logs() as said:
        address = free_address()
        async with running(Node(address, [address], pace=FAST._replace(meet=0.2))) as (only,):
            only.ready()
            await eventually(lambda: any("no peer" in e["event"] for e in said), "it says so")
            assert only.notes.learnt == []


async def test_an_answer_has_a_limit_whatever_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge, "MAX_PROMPTS", 500)
    notes = Notes()
    for number in range(2000):
        notes.learn(pick(f"{number}").keys, ENDPOINTS[0])

    async def answered(limit: int) -> int:
        question = Question(limit=limit).SerializeToString()
        found = [read(message) async for message in knowledge.answer(question, 1, {"llama": notes})]
        return sum(len(part.picks) for batch in found for part in batch.pools)

    assert [await answered(limit) for limit in (0, 1, 400, 5000, 2**32 - 1)] == [0, 1, 400, 500, 500]
    monkeypatch.setattr(knowledge, "MAX_BYTES", 1)
    size = [
        len(message) async for message in knowledge.answer(Question(limit=500).SerializeToString(), 1, {})
    ]
    assert size == []


async def test_an_answer_has_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge, "MAX_BYTES", 300_000)
    notes = Notes()
    for number in range(3000):
        notes.learn(pick(f"{number} pieces of gold " * 200).keys, ENDPOINTS[0])
    question = Question(limit=3000).SerializeToString()
    sizes = [len(message) async for message in knowledge.answer(question, 1, {"llama": notes})]
    assert 300_000 <= sum(sizes) < 300_000 + sizes[0] + 50_000


async def test_only_one_is_answered_at_a_time() -> None:
    async with nodes(1) as (old,), grpc.aio.insecure_channel(old.address) as channel:
        for number in range(3000):
            old.notes.learn(pick(f"{number} pieces of gold " * 200).keys, ENDPOINTS[0])
        known = channel.unary_stream(f"/{SERVICE}/Known")
        question = Question(limit=3000).SerializeToString()
        first = known(question)
        await first.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await known(question).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        while await first.read() is not grpc.aio.EOF:
            pass
        assert await known(question).read() is not grpc.aio.EOF


async def test_what_is_no_question_is_answered_with_nothing() -> None:
    async with nodes(1) as (old,), grpc.aio.insecure_channel(old.address) as channel:
        taught(old, 3)
        answer = channel.unary_stream(f"/{SERVICE}/Known")(b"\xff\xff")
        assert await answer.read() is grpc.aio.EOF


async def test_a_memory_with_unsound_entries_tells_the_others() -> None:
    class Odd(Notes):
        def known(self, limit: int):  # type: ignore[no-untyped-def]
            yield [], [], ENDPOINTS[0]
            yield [1, 2], [1], ENDPOINTS[0]
            yield [1, 2], [8, 4], ENDPOINTS[0]
            yield [1, 2], [4, 8], ENDPOINTS[0]

    question = Question(limit=9).SerializeToString()
    (message,) = [m async for m in knowledge.answer(question, 1, {"llama": Odd()})]
    assert [list(one.keys) for part in read(message).pools for one in part.picks] == [[1, 2]]


async def test_what_is_learnt_while_it_is_told_is_no_trouble() -> None:
    pool, strategy = Pool("llama"), build("PREFIX_AWARE")
    pool.set_endpoints(ENDPOINTS)
    assert isinstance(strategy, PrefixAware)
    memory = PoolMemory(pool, strategy)
    for number in range(1500):
        memory.learn(pick(f"{number} pieces of gold " * 200).keys, ENDPOINTS[number % 3])
    told = 0
    async for message in knowledge.answer(Question(limit=5000).SerializeToString(), 1, {"llama": memory}):
        memory.learn(pick("more").keys, ENDPOINTS[0])
        told += sum(len(part.picks) for part in read(message).pools)
    assert told == 1500


async def test_messages_are_answered_most_recent_first() -> None:
    notes = Notes()
    for number in range(3000):
        notes.learn(pick(f"{number} pieces of gold " * 200).keys, ENDPOINTS[0])
    question = Question(limit=3000).SerializeToString()
    order = []
    async for message in knowledge.answer(question, 1, {"llama": notes}):
        order.append(read(message).pools[0].picks[0].keys[-1])  # noqa: PERF401
    places = [next(i for i, (k, _) in enumerate(notes.learnt) if k.keys[-1] == key) for key in order]
    assert len(places) > 2
    assert all(earlier > later for earlier, later in pairwise(places))

"""What peers say is entered if it can be, and does no harm if not."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator, Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from extproc.picker import Picked
from extproc.prefix import BlockKeys
from extproc.sharing.batches import SCHEME, Writer, waited
from extproc.sharing.inbox import MAX_KEYS_PER_S, SENDERS, STALE_S, Inbox
from extproc.sharing.memory import Memory
from extproc.sharing.metrics import SharingMetrics
from extproc.sharing.picks_pb2 import Batch, Pick, PoolPicks
from tests.sharing.traffic import ENDPOINTS, Notes, pick, prompt_keys

OWN, OTHER = 1, 2


class Box:
    """An inbox with one pool, its metrics and its clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.notes: Notes = Notes()
        self.memories: dict[str, Memory] = {"llama": self.notes}
        self._registry = CollectorRegistry()
        self.inbox = Inbox(lambda: self.memories, lambda: self.now, SharingMetrics(self._registry), OWN)
        self._numbers = count(1)

    def messages(self, told: Sequence[Picked], made: float = 0.0, instance: int = OTHER) -> list[bytes]:
        writer = Writer(instance, self._numbers, made)
        found = [full.data for one in told if (full := writer.add(one))]
        return found + ([last.data] if (last := writer.finish()) else [])

    def dropped(self, reason: str) -> float | None:
        return self._registry.get_sample_value("extproc_sharing_dropped_picks_total", {"reason": reason})

    def refused(self, reason: str) -> float | None:
        return self._registry.get_sample_value("extproc_sharing_refused_messages_total", {"reason": reason})

    def heard(self) -> float | None:
        return self._registry.get_sample_value("extproc_sharing_heard_picks_total", {"pool": "llama"})


@pytest.fixture
def box() -> Box:
    return Box()


async def test_a_pick_is_learnt_and_its_work_entered_when_it_was_sent(box: Box) -> None:
    keys = prompt_keys("Where is the gold? " * 40)
    (message,) = box.messages([pick(keys, ENDPOINTS[2], at=99.5)], made=100.0)
    await box.inbox.take(waited(message, 0.25))
    assert box.notes.learnt == [(keys, ENDPOINTS[2])]
    assert box.notes.sent == [(ENDPOINTS[2], keys.ends[-1] / 4, 999.25)]
    assert box.heard() == 1


async def test_what_a_peer_knows_is_learnt_without_any_work(box: Box) -> None:
    (message,) = box.messages([pick("a"), pick("b")])
    assert await box.inbox.learn(message) == 2
    assert len(box.notes.learnt) == 2
    assert box.notes.sent == []
    assert box.heard() is None


async def test_of_a_pool_that_is_not_here_nothing_is_entered(box: Box) -> None:
    (message,) = box.messages([pick("a", pool="mistral"), pick("b"), pick("c", pool="mistral")])
    await box.inbox.take(message)
    assert len(box.notes.learnt) == 1
    assert box.dropped("unknown_pool") == 2


async def test_an_endpoint_that_is_not_in_the_pool_is_never_entered(box: Box) -> None:
    (message,) = box.messages([pick("a", "10.6.6.6:666"), pick("b"), pick("c", "")])
    await box.inbox.take(message)
    assert [address for _, address in box.notes.learnt] == [ENDPOINTS[0]]
    assert box.dropped("unknown_endpoint") == 2


async def test_endpoints_are_those_of_the_moment_also_within_a_message(box: Box) -> None:
    class Leaving(Notes):
        def learn(self, keys: BlockKeys, address: str) -> float:
            self.addresses = ENDPOINTS[1:]
            return super().learn(keys, address)

    notes = Leaving()
    inbox = Inbox(lambda: {"llama": notes}, time.monotonic, SharingMetrics(CollectorRegistry()), OWN)
    (message,) = box.messages([pick("a"), pick("b"), pick("c", ENDPOINTS[1])])
    await inbox.take(message)
    assert [address for _, address in notes.learnt] == [ENDPOINTS[0], ENDPOINTS[1]]


async def test_an_old_pick_says_nothing_any_more(box: Box) -> None:
    (message,) = box.messages([pick("a", at=100 - STALE_S - 1), pick("b", at=100 - STALE_S + 1)], made=100)
    await box.inbox.take(message)
    assert len(box.notes.learnt) == 1
    assert box.dropped("stale") == 1


async def test_own_picks_that_come_back_are_not_entered(box: Box) -> None:
    (message,) = box.messages([pick("a")], instance=OWN)
    await box.inbox.take(message)
    assert box.notes.learnt == []
    assert box.refused("own") == 1


async def test_a_message_that_comes_twice_is_entered_once_and_order_does_not_matter(box: Box) -> None:
    first, second, third = (box.messages([pick(word)])[0] for word in "abc")
    for message in (third, first, third, second, first):
        await box.inbox.take(message)
    assert len(box.notes.learnt) == 3
    assert box.refused("duplicate") == 2


async def test_two_replicas_may_use_the_same_numbers(box: Box) -> None:
    for instance in (OTHER, OTHER + 1):
        box._numbers = count(1)
        await box.inbox.take(box.messages([pick("a")], instance=instance)[0])
    assert len(box.notes.learnt) == 2


async def test_block_keys_that_were_made_in_another_way_are_not_entered(box: Box) -> None:
    (message,) = box.messages([pick("a")])
    await box.inbox.take(message + Batch(scheme=SCHEME ^ 1).SerializeToString())
    assert box.notes.learnt == []
    assert box.refused("other_scheme") == 1


async def test_a_broken_pick_ends_its_message_and_the_next_message_is_taken(box: Box) -> None:
    broken = Batch(
        instance=OTHER,
        scheme=SCHEME,
        pools=[
            PoolPicks(
                pool="llama",
                endpoints=[ENDPOINTS[0]],
                picks=[Pick(keys=[1], ends=[1]), Pick(keys=[2], ends=[]), Pick(keys=[3], ends=[1])],
            )
        ],
    ).SerializeToString()
    await box.inbox.take(broken)
    assert [keys.keys for keys, _ in box.notes.learnt] == [[1]]
    assert box.refused("malformed") == 1
    await box.inbox.take(box.messages([pick("a")])[0])
    assert len(box.notes.learnt) == 2


@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    box = Box()
    asyncio.run(box.inbox.take(data))
    assert box.notes.learnt == []


async def test_an_error_of_the_pool_is_counted_and_said_once_and_the_rest_goes_on(box: Box) -> None:
    box.notes.broken = True
    with capture_logs() as said:
        await box.inbox.take(box.messages([pick("a"), pick("b")])[0])
    assert box.dropped("failed") == 2
    assert [entry["log_level"] for entry in said] == ["error"]
    box.notes.broken = False
    await box.inbox.take(box.messages([pick("c")])[0])
    assert len(box.notes.learnt) == 1


async def test_no_more_block_keys_than_the_limit_are_entered_in_a_second(box: Box) -> None:
    keys = BlockKeys(list(range(1000)), list(range(1000)))
    flood = box.messages([pick(keys)] * (MAX_KEYS_PER_S // 1000 + 300))
    for message in flood:
        await box.inbox.take(message)
    assert len(box.notes.learnt) == MAX_KEYS_PER_S // 1000
    assert box.dropped("too_many") == 300
    box.now += 0.5
    await box.inbox.take(box.messages([pick(keys)])[0])
    assert len(box.notes.learnt) == MAX_KEYS_PER_S // 1000 + 1


class Counting(Notes):
    """Keeps nothing: what tens of thousands of lists cost the garbage collector is not the inbox's."""

    def __init__(self) -> None:
        super().__init__()
        self.picks = 0

    def learn(self, keys: BlockKeys, address: str) -> float:
        self.picks += 1
        return 1.0

    def heard(self, address: str, tokens: float, at: float) -> None:
        pass


@pytest.fixture
def frozen_heap() -> Iterator[None]:
    """As in a router: hardly anything but this test's own objects to be collected."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen_heap")
async def test_ten_thousand_picks_at_once_leave_others_their_turns(box: Box) -> None:
    box.notes = notes = Counting()
    box.memories["llama"] = notes
    told = [
        pick(BlockKeys([number << 32 | k for k in range(40)], list(range(1, 41))), at=0.0)
        for number in range(10_000)
    ]
    messages = box.messages(told)
    del told
    gaps: list[float] = []

    async def request() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            gaps.append(time.thread_time() - began)

    other = asyncio.create_task(request())
    await asyncio.gather(*(box.inbox.take(message) for message in messages))
    other.cancel()
    assert notes.picks == 10_000
    # A turn is 1 ms, and parsing a message may come before it; CPU time, since the machine is shared.
    assert max(gaps) < 0.010
    assert len(gaps) > 20


async def test_what_it_remembers_of_senders_has_a_limit(box: Box) -> None:
    for instance in range(10, 10 + 3 * SENDERS):
        await box.inbox.take(box.messages([pick("a")], instance=instance)[0])
    assert len(box.inbox._received._senders) == SENDERS

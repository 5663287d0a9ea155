"""What is remembered of prompts that were sent: who has how much of one, for how long, in how much memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from extproc.routing import sent
from extproc.routing.sent import GENERATION_BYTES, KEY_BYTES, POPULAR_AT_LEAST, SPARE_SLOTS, TOKEN_BYTES, Sent

BLOCK = 64
TOKENS = BLOCK // TOKEN_BYTES
A, B, C = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"


def ends(keys: Sequence[int]) -> list[int]:
    return [BLOCK * (at + 1) for at in range(len(keys))]


def send(memory: Sent, keys: Sequence[int], address: str, times: int = 1) -> None:
    for _ in range(times):
        memory.add(keys, memory.match(keys, ends(keys)).entries, address)


def has(memory: Sent, keys: Sequence[int]) -> dict[str, int]:
    """Blocks of the prompt by endpoint."""
    covered = memory.match(keys, ends(keys)).covered
    return {address: int(covered[slot]) // TOKENS for address, slot in memory.slots.items()}


def popular(memory: Sent, keys: Sequence[int]) -> int:
    """Popular blocks of the prompt."""
    return int(memory.match(keys, ends(keys)).popular) // TOKENS


def of(*addresses: str, generation_bytes: int = GENERATION_BYTES) -> Sent:
    memory = Sent(generation_bytes)
    memory.set_endpoints(addresses)
    return memory


def addresses(count: int) -> list[str]:
    return [f"10.1.{number // 250}.{number % 250}:80" for number in range(count)]


class TestWhoHasAPrompt:
    def test_nobody_has_what_was_never_sent(self) -> None:
        memory = of(A, B)
        match = memory.match([1, 2], ends([1, 2]))
        assert (match.covered.tolist(), match.longest, match.popular, match.home_key) == ([0, 0], 0, 0, 1)

    def test_an_endpoint_has_what_a_prompt_begins_with_in_common_with_one_that_it_was_sent(self) -> None:
        memory = of(A, B)
        send(memory, [1, 2, 3], A)
        send(memory, [1, 2, 7, 8], B)
        assert has(memory, [1, 2, 3, 4]) == {A: 3, B: 2}
        assert has(memory, [1, 2, 7, 8]) == {A: 2, B: 4}
        assert has(memory, [1, 9]) == {A: 1, B: 1}
        assert has(memory, [9, 2, 3]) == {A: 0, B: 0}
        assert memory.match([1, 2, 3, 4], ends([1, 2, 3, 4])).longest == 3 * TOKENS

    def test_one_that_computed_it_instead_has_it_too_and_it_counts_once(self) -> None:
        memory = of(A, B)
        send(memory, [1, 2, 3], A)
        before = [entry & sent._COUNT for entry in memory.match([1, 2, 3], ends([1, 2, 3])).entries]
        memory.also([1, 2, 3, 4], B)
        assert has(memory, [1, 2, 3, 4]) == {A: 3, B: 3}
        assert [entry & sent._COUNT for entry in memory.match([1, 2, 3], ends([1, 2, 3])).entries] == before

    @pytest.mark.parametrize("endpoints", [1, 4, 5, 8, 9, 40, 64, 65, 300])
    def test_each_of_many_has_its_own_part_of_one_chain(self, endpoints: int) -> None:
        pool = addresses(endpoints)
        memory = of(*pool)
        chain = list(range(1, endpoints + 3))
        for number, address in enumerate(pool):
            send(memory, chain[: number + 1], address)
        assert has(memory, chain) == {address: number + 1 for number, address in enumerate(pool)}

    def test_tokens_are_counted_by_the_bytes_that_a_block_ends_at(self) -> None:
        memory = of(A)
        memory.add([1, 2], memory.match([1, 2], [64, 191]).entries, A)
        match = memory.match([1, 2, 3], [64, 191, 200])
        assert match.covered.tolist() == [191 // TOKEN_BYTES]


class TestPopularBlocks:
    def test_a_block_is_popular_when_more_have_it_than_half_of_what_one_endpoint_serves(self) -> None:
        memory = of(A, B, C)
        for number in range(600):
            # Of six, one has block 1; one in six is half of what one of three endpoints serves.
            send(memory, [1, 10_000 + number] if number % 6 == 0 else [20_000 + number], A)
        assert popular(memory, [1, 2]) == 0
        send(memory, [1, 3], B, times=20)
        assert popular(memory, [1, 2]) == 1
        assert popular(memory, [1, 3]) == 1

    def test_none_is_before_some_requests_had_it_however_large_its_share(self) -> None:
        memory = of(A, B)
        send(memory, [1, 2], A, times=POPULAR_AT_LEAST - 1)
        assert popular(memory, [1, 2]) == 0
        send(memory, [1], A)
        assert popular(memory, [1, 2]) == 1

    def test_its_share_is_that_of_the_last_block_that_is_popular(self) -> None:
        memory = of(A, B)
        for number in range(100):
            send(memory, [1, 2, 100 + number] if number % 2 else [1, 100 + number], A)
        assert memory.match([1, 2, 7], ends([1, 2, 7])).share == pytest.approx(0.5)
        assert memory.match([1, 7], ends([1, 7])).share == 1.0
        assert memory.match([7], ends([7])).share == 0.0

    def test_the_home_of_a_prompt_goes_by_its_first_block_that_is_not_popular(self) -> None:
        memory = of(A, B)
        for number in range(100):
            send(memory, [1, 2, 100 + number], A)
        assert memory.match([1, 2, 7, 8], ends([1, 2, 7, 8])).home_key == 7
        assert memory.match([1, 2], ends([1, 2])).home_key == 2
        assert memory.match([5, 6], ends([5, 6])).home_key == 5

    def test_endpoints_that_left_do_not_make_blocks_popular(self) -> None:
        pool = addresses(60)
        memory = of(*pool)
        memory.set_endpoints(pool[-2:])
        for number in range(1000):
            send(memory, [number % 20], pool[-1])
        assert memory.width == 60
        assert [popular(memory, [block]) for block in range(20)] == [0] * 20

    def test_popularity_fades_when_a_block_is_not_sent_any_more(self) -> None:
        # Blocks of one key each: a generation is so many requests.
        memory = of(A, B, generation_bytes=100 * KEY_BYTES)
        fresh = iter(range(1000, 100_000))
        for _ in range(100):
            send(memory, [1, next(fresh)], A)
        assert popular(memory, [1]) == 1
        for _ in range(450):
            send(memory, [next(fresh)], A)
            send(memory, [next(fresh), next(fresh)], A)
            memory.match([1], [BLOCK])
        assert popular(memory, [1]) == 0


class TestWhatIsForgotten:
    def test_what_is_used_stays_and_what_is_not_goes_after_one_to_two_generations(self) -> None:
        memory = of(A, B, generation_bytes=1000 * KEY_BYTES)
        send(memory, [1, 2, 3], A)
        send(memory, [4, 5, 6], A)
        known = []
        for number in range(2500):
            send(memory, [1, 2, 100 + number], B)
            known.append(has(memory, [4, 5, 6])[A])
        assert has(memory, [1, 2, 3]) == {A: 2, B: 2}
        gone = known.index(0)
        assert known == [3] * gone + [0] * (len(known) - gone)
        assert 990 <= gone <= 2000

    def test_of_an_endpoint_that_left_nothing_is_known_and_of_the_others_all(self) -> None:
        memory = of(A, B)
        send(memory, [1, 2], A)
        send(memory, [1, 2, 3], B)
        memory.set_endpoints([B, C])
        assert has(memory, [1, 2, 3]) == {B: 3, C: 0}
        send(memory, [1, 2], C)
        memory.set_endpoints([A, B, C])
        assert has(memory, [1, 2, 3]) == {A: 0, B: 3, C: 2}

    def test_an_endpoint_in_place_of_another_has_nothing_of_it_at_any_time(self) -> None:
        memory = of(A, B, generation_bytes=100 * (KEY_BYTES + 20))
        chains = [[1, 2, number] for number in range(10, 20)]
        for round_ in range(400):
            newcomer = f"10.9.{round_ // 250}.{round_ % 250}:80"
            memory.set_endpoints([A, newcomer])
            for chain in chains:
                assert has(memory, chain)[newcomer] == 0
            send(memory, chains[round_ % 10], newcomer)
            send(memory, chains[round_ % 10], A)
            assert has(memory, chains[round_ % 10]) == {A: 3, newcomer: 3}

    @pytest.mark.parametrize("endpoints", [1, 7, 200])
    def test_endpoints_that_come_and_go_without_end_take_no_more_bits_than_is_said(
        self, endpoints: int
    ) -> None:
        memory, pool = Sent(), addresses(endpoints)
        for round_ in range(1000):
            pool = [*pool[1:], f"10.7.{round_ // 250}.{round_ % 250}:80"]
            memory.set_endpoints(pool)
            send(memory, [round_], pool[-1])
        assert memory.width <= endpoints + 2 * (max(SPARE_SLOTS, endpoints) + 1)
        assert set(memory.slots) == set(pool)
        assert len(set(memory.slots.values())) == endpoints

    def test_the_same_prompts_for_ever_are_counted_right(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As many requests as the counts have bits for would reach into the endpoints' bits."""
        monkeypatch.setattr(sent, "GENERATION_REQUESTS", 1000)
        memory = of(A, B)
        for _ in range(10_000):
            send(memory, [1, 2], A)
            assert max(memory._current.values()) & sent._COUNT < 2 * 1000
        assert has(memory, [1, 2]) == {A: 2, B: 0}

    def test_the_counts_have_room_for_two_generations(self) -> None:
        assert 2 * sent.GENERATION_REQUESTS <= sent._COUNT

    def test_to_forget_an_endpoint_takes_no_time_that_grows_with_what_is_remembered(self) -> None:
        memory = of(A, B)
        for number in range(2000):
            send(memory, range(number * 10, number * 10 + 10), (A, B)[number % 2])
        before = [*memory._current.items()]
        memory.set_endpoints([B])
        assert [*memory._current.items()] == before


class TestMemory:
    """What is said of `GENERATION_BYTES`, at a tenth of the size: prompts of 40 blocks, each sent to two."""

    BYTES = GENERATION_BYTES // 10

    @pytest.mark.parametrize(("endpoints", "keys"), [(4, 28_000), (40, 28_000), (1000, 15_000)])
    def test_two_generations_are_the_limit_and_hold_as_many_keys_as_is_said(
        self, endpoints: int, keys: int
    ) -> None:
        pool = addresses(endpoints)
        memory = of(*pool, generation_bytes=self.BYTES)
        numbers, draw = np.random.default_rng(1), random.Random(1)
        most = held = 0
        tracemalloc.start()
        try:
            for _ in range(2 * keys // 40 + keys // 80):
                prompt = numbers.integers(0, 1 << 64, 40, dtype=np.uint64).tolist()
                send(memory, prompt, draw.choice(pool))
                # The highest bit makes the longest numbers.
                send(memory, prompt, pool[-1])
                del prompt
                most, held = max(most, tracemalloc.get_traced_memory()[0]), max(held, len(memory))
        finally:
            tracemalloc.stop()
        assert 1.9 * keys <= held <= 2.2 * keys
        assert 0.5 * 2 * self.BYTES < most < 2 * self.BYTES


@cache
def key(path: tuple[int, ...]) -> int:
    """A number for a path down a tree, as a block key stands for all content up to there."""
    return random.Random(repr(path)).getrandbits(64)


class Naive:
    """The same in plain sets: by key the requests that had it and the endpoints that were sent it."""

    def __init__(self, generation_bytes: int) -> None:
        self.bytes = generation_bytes
        self.current: dict[int, tuple[int, frozenset[str]]] = {}
        self.previous: dict[int, tuple[int, frozenset[str]]] = {}
        self.requests = self.carried = self.left = 0

    def entry(self, one: int) -> tuple[int, frozenset[str]] | None:
        if one in self.current:
            return self.current[one]
        if one in self.previous:
            count, who = self.previous[one]
            return count // 2, who
        return None

    def known(self, keys: Sequence[int]) -> Iterator[tuple[int, frozenset[str]]]:
        for one in keys:
            found = self.entry(one)
            if found is None:
                return
            yield found

    def turn(self) -> None:
        self.previous, self.current = self.current, {}
        self.carried, self.requests = (self.carried + self.requests) // 2, 0
        self.left = 0

    def add(self, keys: Sequence[int], address: str, width: int) -> None:
        found = list(self.known(keys))
        if (len(self.current) + len(keys)) * (KEY_BYTES + width * 2 // 15) > self.bytes:
            self.turn()
            found = [(count // 2, who) for count, who in found]
        self.requests += 1
        found += [(0, frozenset())] * (len(keys) - len(found))
        for one, (count, who) in zip(keys, found, strict=True):
            self.current[one] = (count + 1, who | {address})

    def change_pool(self, gone: set[str], endpoints: int) -> None:
        self.left += len(gone)
        if self.left > max(SPARE_SLOTS, endpoints):
            self.turn()
        for generation in (self.current, self.previous):
            for one, (count, who) in generation.items():
                generation[one] = (count, who - gone)


ADDRESSES = addresses(8)
paths = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)


class AnyHistory(RuleBasedStateMachine):
    """Prompts and changes of the pool in any order, beside plain sets."""

    @initialize(
        limit=st.sampled_from([10, 40, 10_000]), first=st.lists(st.sampled_from(ADDRESSES), min_size=1)
    )
    def start(self, limit: int, first: list[str]) -> None:
        self.memory = of(*first, generation_bytes=limit * KEY_BYTES)
        self.naive = Naive(limit * KEY_BYTES)
        self.tried: set[tuple[int, ...]] = set()

    @rule(path=paths, data=st.data(), times=st.integers(1, 12))
    def send(self, path: tuple[int, ...], data: st.DataObject, times: int) -> None:
        address = data.draw(st.sampled_from(sorted(self.memory.slots)))
        self.tried.add(path)
        keys = [key(path[: end + 1]) for end in range(len(path))]
        for _ in range(times):
            self.naive.add(keys, address, self.memory.width)
            send(self.memory, keys, address)

    @rule(pool=st.lists(st.sampled_from(ADDRESSES), min_size=1, unique=True))
    def change_the_pool(self, pool: list[str]) -> None:
        self.naive.change_pool(set(self.memory.slots) - set(pool), len(pool))
        self.memory.set_endpoints(pool)
        assert set(self.memory.slots) == set(pool)

    @rule()
    def replace_the_whole_pool_again_and_again(self) -> None:
        here = sorted(self.memory.slots)
        for round_ in range(SPARE_SLOTS + 2):
            self.change_the_pool([f"10.9.0.{round_}:80"])
        self.change_the_pool(here)

    @invariant()
    def both_know_the_same(self) -> None:
        assert len(set(self.memory.slots.values())) == len(self.memory.slots)
        enough = max(
            POPULAR_AT_LEAST,
            (self.naive.carried + self.naive.requests) // (2 * len(self.memory.slots)) + 1,
        )
        for path in self.tried:
            keys = [key(path[: end + 1]) for end in range(len(path))]
            known = list(self.naive.known(keys))
            expected = {
                address: next((at for at, (_, who) in enumerate(known) if address not in who), len(known))
                for address in self.memory.slots
            }
            assert has(self.memory, keys) == expected
            match = self.memory.match(keys, ends(keys))
            assert match.longest == TOKENS * max(expected.values())
            assert match.covered.shape == (self.memory.width,)
            many = next((at for at, (count, _) in enumerate(known) if count < enough), len(known))
            assert match.popular == TOKENS * many
            requests = self.naive.carried + self.naive.requests
            assert match.share == (known[many - 1][0] / requests if many else 0.0)
            assert match.home_key == keys[min(many, len(keys) - 1)]


AnyHistory.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestAnyHistory = AnyHistory.TestCase

"""Adaptive depth: which block key places a prompt, given the traffic of late."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.routing.depth import GENERATION_KEYS, HOT_ENOUGH, HOT_PER_ENDPOINT, Depths, Sight

N = 4
WARM = HOT_PER_ENDPOINT * N
SYSTEM = [1, 2, 3]


def see(depths: Depths, chain: list[int], endpoints: int = N) -> Sight:
    """One request, placed where the table says."""
    sight = depths.look(chain, endpoints)
    depths.note(chain, sight, sight.depth)
    return sight


def test_a_prompt_never_seen_is_placed_by_its_first_key() -> None:
    assert see(Depths(), [1, 2, 3]).depth == 0


def test_what_all_share_is_not_split_before_it_was_seen_often_enough() -> None:
    depths = Depths()
    placed = [see(depths, [*SYSTEM, 1000 + number]).depth for number in range(WARM + 1)]
    assert placed == [0] * WARM + [3]


def test_what_has_half_a_fair_share_or_less_is_not_split_however_often_it_was_seen() -> None:
    depths = Depths()
    # One request in eight: exactly 0.5 / N.
    for number in range(160):
        for other in range(7):
            see(depths, [10_000 + 7 * number + other])
        assert see(depths, [*SYSTEM, 1000 + number]).depth == 0


def test_a_prefix_keeps_its_depth_when_what_it_shares_becomes_popular() -> None:
    depths = Depths()
    early = [*SYSTEM, 50, 51]
    assert see(depths, early).depth == 0
    for number in range(200):
        see(depths, [*SYSTEM, 1000 + number])
    assert see(depths, [*early, 52]).depth == 0
    assert see(depths, early).depth == 0
    assert see(depths, [*SYSTEM, 60, 61]).depth == 3


def test_turns_of_a_conversation_behind_a_popular_prompt_keep_the_depth_of_the_first() -> None:
    depths = Depths()
    for number in range(200):
        see(depths, [*SYSTEM, 1000 + number])
    turns = [*SYSTEM, 50]
    for turn in range(10):
        assert see(depths, turns).depth == 3
        turns = [*turns, 51 + turn]


def test_an_identical_popular_prompt_keeps_one_depth() -> None:
    depths = Depths()
    assert {see(depths, SYSTEM).depth for _ in range(5000)} == {0}
    assert depths.look(SYSTEM, N).adaptive == 0


def test_a_popular_question_behind_a_system_prompt_is_placed_by_its_own_part() -> None:
    depths = Depths()
    question = [*SYSTEM, 50, 51]
    see(depths, question)
    for number in range(400):
        see(depths, [*SYSTEM, 1000 + number])
        see(depths, [*SYSTEM, 2000 + number])
        see(depths, question)
    assert depths.look(question, N).adaptive == 3


def test_a_prefix_moved_to_its_own_part_stays_there() -> None:
    depths = Depths()
    early = [*SYSTEM, 50, 51]
    see(depths, early)
    for number in range(200):
        see(depths, [*SYSTEM, 1000 + number])
    sight = depths.look(early, N)
    assert (sight.depth, sight.adaptive) == (0, 3)
    depths.note(early, sight, sight.adaptive)
    assert see(depths, early).depth == 3
    assert see(depths, [*early, 52]).depth == 3
    # What others placed by the shared part stays as it was.
    assert depths.look([*SYSTEM, 1000, 7], N).depth == 0


def test_in_a_large_pool_what_all_share_is_split_after_a_fixed_number_of_requests() -> None:
    depths = Depths()
    placed = [see(depths, [*SYSTEM, 1000 + number], endpoints=1000).depth for number in range(200)]
    assert placed == [0] * HOT_ENOUGH + [3] * (200 - HOT_ENOUGH)


def test_what_is_no_longer_popular_is_no_longer_split() -> None:
    depths = Depths(generation_requests=100)
    for number in range(300):
        see(depths, [*SYSTEM, 1000 + number])
    assert see(depths, [*SYSTEM, 5000]).depth == 3
    for number in range(300):
        see(depths, [20_000 + number])
        if number % 50 == 0:
            see(depths, [*SYSTEM, 6000 + number])
    assert depths.look([*SYSTEM, 7000], N).adaptive == 0


def test_a_key_not_seen_for_a_whole_generation_is_forgotten() -> None:
    depths = Depths(generation_requests=10)
    see(depths, [1, 2])
    for number in range(18):
        see(depths, [100 + number])
    assert depths.look([1, 2], N).known != []
    see(depths, [200])
    assert depths.look([1, 2], N).known == []


def test_200_000_requests_of_random_prefixes_leave_no_more_keys_than_stated() -> None:
    draw = random.Random(1)
    depths = Depths(generation_requests=800, generation_keys=2_000)
    most = 0
    for _ in range(200_000):
        chain = [draw.randrange(3), *(draw.getrandbits(64) for _ in range(draw.choice((1, 2, 5))))]
        see(depths, chain)
        most = max(most, len(depths))
    assert 3_900 < most <= 4_000


def test_the_default_limit_holds_for_long_prompts() -> None:
    draw = random.Random(1)
    depths = Depths()
    most = 0
    for _ in range(1_000):
        see(depths, [draw.getrandbits(64) for _ in range(1_000)])
        most = max(most, len(depths))
    assert 0.95 * 2 * GENERATION_KEYS < most <= 2 * GENERATION_KEYS


class Model:
    """The rules as they are described, at leisure: a list of requests by generation, recounted each time."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.requests = 0
        self.total = 0
        self.age = 0
        self.count: dict[int, int] = {}
        self.seen_in: dict[int, int] = {}
        self.anchor: dict[int, int] = {}

    def see(self, chain: list[int], endpoints: int) -> tuple[int, int]:
        if self.requests == self.generation:
            self.total, self.requests, self.age = (self.total + self.requests) // 2, 0, self.age + 1
        for key in [key for key, age in self.seen_in.items() if age < self.age - 1]:
            del self.count[key], self.seen_in[key], self.anchor[key]
        for key in chain:
            if key in self.count and self.seen_in[key] < self.age:
                self.count[key] //= 2
                self.seen_in[key] = self.age
        count = [self.count.get(key, 0) for key in chain]
        known = sum(key in self.count for key in chain)
        total = self.total + self.requests
        hot = [c >= min(8 * endpoints, 64) and 2 * endpoints * c > total for c in count]
        if all(hot):
            adaptive = next(index for index, c in enumerate(count) if c <= 2 * count[-1])
        else:
            adaptive = hot.index(False)
        sticks = known == len(chain) or (known > 0 and not hot[known - 1])
        depth = self.anchor[chain[known - 1]] if sticks else adaptive
        for key in chain:
            self.count[key] = self.count.get(key, 0) + 1
            self.seen_in[key] = self.age
            self.anchor.setdefault(key, depth)
        self.requests += 1
        return depth, adaptive


@given(
    st.integers(1, 3),
    st.sampled_from([5, 40, 1000]),
    st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, 30)), max_size=40),
)
@settings(max_examples=150)
def test_the_table_follows_the_rules_as_they_are_described(
    endpoints: int, generation: int, runs: list[tuple[list[int], int]]
) -> None:
    depths, model = Depths(generation_requests=generation), Model(generation)
    for path, times in runs:
        chain = [hash(tuple(path[: end + 1])) for end in range(len(path))]
        for _ in range(times):
            sight = see(depths, chain, endpoints)
            assert (sight.depth, sight.adaptive) == model.see(chain, endpoints)
            assert sight.depth < len(chain)

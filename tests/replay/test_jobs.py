"""Policies in processes of their own."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from extproc.replay.jobs import JobError, each
from extproc.replay.peers.load import RoundRobin
from extproc.replay.policies import Named, parse
from extproc.replay.policy import Policy
from extproc.replay.run import Fleet, replay
from tests.replay.traffic import ENGINE, conversations

FLEET = Fleet(ENGINE, 3)
TRACE = conversations(60)


def named(*names: str) -> list[Named]:
    return [policy for name in names for policy in parse(name)]


def ignored(_index: int, _done: int) -> None:
    pass


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_each_policy_has_the_outcome_that_it_has_alone(jobs: int) -> None:
    policies = named("random", "least-in-flight", "radix-tree")
    found = dict(each(TRACE, FLEET, policies, jobs, ignored))
    assert sorted(found) == [0, 1, 2]
    for index, policy in enumerate(policies):
        alone = replay(TRACE, FLEET, policy.make)
        assert np.array_equal(found[index].outcome.engine, alone.engine)
        assert np.array_equal(found[index].outcome.ttft, alone.ttft)
        assert found[index].seconds > 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_rises_to_the_number_of_requests_at_most(jobs: int) -> None:
    heard: list[tuple[int, int]] = []
    list(each(TRACE, FLEET, named("random", "scored"), jobs, lambda *one: heard.append(one)))
    for index in (0, 1):
        counts = [done for of, done in heard if of == index]
        assert counts == sorted(counts)
        assert max(counts, default=0) <= len(TRACE.arrivals)


def test_a_process_that_is_killed_is_named_with_what_may_help() -> None:
    def killed() -> Policy:
        os.kill(os.getpid(), signal.SIGKILL)
        return RoundRobin()

    with pytest.raises(JobError, match=r"greedy: its process ended \(signal SIGKILL\); with --jobs 1"):
        list(each(TRACE, FLEET, [Named("greedy", killed), *named("random")], 2, ignored))


def test_what_a_policy_raises_is_raised_here() -> None:
    def broken() -> Policy:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        list(each(TRACE, FLEET, [Named("broken", broken)], 2, ignored))


def test_who_wants_no_more_outcomes_leaves_no_process_behind() -> None:
    before = children()
    outcomes = each(TRACE, FLEET, named("random", "scored", "radix-tree", "mean-sigma"), 3, ignored)
    next(outcomes)
    outcomes.close()
    assert children() == before


def children() -> set[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(file.read().split())

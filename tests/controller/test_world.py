"""What the controller learns from objects that come and go."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from cacheprep.controller.world import Parent, World
from cacheprep.plan.possession import SILENT_SECONDS

SAMPLES = Path(__file__).parents[2] / "manifests" / "operator" / "samples"


@pytest.mark.parametrize("kind", ["data", "image"])
def test_a_cache_that_has_gone_is_noticed_so_that_its_labels_go_whoever_deleted_it(kind: str) -> None:
    heard = []
    world = World(lambda _: None, lambda: heard.append(1), lambda: 0.0)
    index, sample = {
        "data": (world.data_caches, "model-data-cache-config.yaml"),
        "image": (world.image_caches, "model-image-cache.yaml"),
    }[kind]
    item = yaml.safe_load((SAMPLES / sample).read_text())
    item["metadata"]["uid"] = "u"
    index.take({"u": index.listing.read(item)})
    assert not world.lost_caches
    heard.clear()
    index.take({})
    assert world.lost_caches
    assert heard, "nobody looks"


START = 1_800_000_000.0


class Clock:
    """Unix time, s."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def listening(clock: Clock) -> tuple[World, list[Parent]]:
    """A world with one endpoint, and what is to be looked at."""
    asked: list[Parent] = []
    world = World(asked.append, lambda: None, clock)
    item = yaml.safe_load((SAMPLES / "inference-endpoint-config.yaml").read_text())
    item["metadata"]["uid"] = "e"
    world.inference.take({"e": world.inference.listing.read(item)})
    return world, asked


def says(world: World, clock: Clock, wrong_by: float = 0.0) -> None:
    """The agent of a node writes; its clock is wrong by so many seconds."""
    at = datetime.fromtimestamp(clock.now + wrong_by, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"nodeUid": "n", "bootId": "b", "observedAt": at}
    kind = {"apiVersion": "warmroute.dev/v1alpha1", "kind": "NodeModelCache"}
    item = {**kind, "metadata": {"name": "node-a", "uid": "c"}, "status": status}
    world.node_caches.take({"c": world.node_caches.listing.read(item)})


def heard(world: World, clock: Clock) -> dict[str, float]:
    (parent,) = world.parents
    observed = world.observed(parent, clock())
    assert observed is not None
    return dict(observed.heard)


def test_when_an_agent_was_heard_does_not_go_by_its_own_clock() -> None:
    clock = Clock()
    world, _ = listening(clock)
    says(world, clock, wrong_by=-86400)
    assert heard(world, clock) == {}, "it may have been written long before anybody listened"
    clock.now += 300
    says(world, clock, wrong_by=-86400)
    assert heard(world, clock) == {"node-a": START + 300}
    world.node_caches.take({})
    assert heard(world, clock) == {}


def test_a_heartbeat_asks_for_no_look_unless_the_agent_was_taken_for_silent() -> None:
    clock = Clock()
    world, asked = listening(clock)
    says(world, clock)
    for seconds, looks in ((300, 0), (SILENT_SECONDS - 1, 0), (SILENT_SECONDS, 1), (300, 0)):
        asked.clear()
        clock.now += seconds
        says(world, clock)
        assert len(asked) == looks, seconds

"""What `cacheprep status` shows, of a cluster that is a model of one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cacheprep.commands.status import _print
from cacheprep.controller.overview import NodeLine, Overview, overview
from cacheprep.plan.observed import Pod
from cacheprep.plan.possession import SILENT_SECONDS
from tests.plan.world import TOTAL, World


def filling() -> World:
    """A world in which nodes fetch."""
    world = World()
    world.round()
    world.rest()
    world.run_agents()
    world.rest()
    return world


def test_a_node_that_fetches_says_how_far_it_is_how_fast_and_how_long_it_takes() -> None:
    world = filling()
    key = world.listing(1).digest()[:40]
    world.disks["node-0"].bytes[key] = 410
    world.disks["node-0"].rates[key] = 10
    world.disks["node-1"].bytes[key] = 200
    world.run_agents()
    lines = {line.node: line for line in overview(world.observed(), world.settings).nodes}
    first = lines["node-0"]
    assert (first.state, first.reason) == ("fetching", "Filling")
    assert (first.bytes_done, first.bytes_total) == (410, TOTAL)
    assert (first.bytes_per_second, first.eta_seconds) == (10, 59)
    # What is there, and no process that brings more.
    assert (lines["node-1"].state, lines["node-1"].bytes_per_second) == ("partial", None)
    assert (lines["node-2"].state, lines["node-2"].eta_seconds) == ("absent", None)


def test_nodes_of_an_architecture_that_the_image_lacks_are_counted_among_those_that_are_no_targets() -> None:
    world = World()
    world.add_node("arm-0", labels={"kubernetes.io/arch": "arm64"})
    world.round()
    world.rest()
    (cache,) = world.own("ModelImageCache")
    problem = "ErrImagePull: no match for platform"
    pod = Pod("p", "p", cache=cache["metadata"]["name"], node="arm-0", problem=problem)
    found = overview(replace(world.observed(), pods=(*world.observed().pods, pod)), world.settings)
    assert "arm-0" not in {line.node for line in found.nodes}
    assert found.others == (("has the architecture arm64, which the image is not made for", 1),)


NOW = 1_800_000_000.0
FETCHING = NodeLine(
    node="node-3",
    state="fetching",
    bytes_done=61_000_000_000,
    bytes_total=140_000_000_000,
    bytes_per_second=812_000_000,
    eta_seconds=97,
    verified_at=None,
    reason="Filling",
    message="Job fill-1",
    remedy="Nothing.",
    next_attempt=None,
)
READY = FETCHING._replace(
    node="node-4",
    state="ready",
    bytes_done=140_000_000_000,
    bytes_per_second=None,
    eta_seconds=None,
    verified_at=NOW - 600,
    reason="",
    message="",
)


def shown(capsys: pytest.CaptureFixture[str], *lines: NodeLine) -> list[list[str]]:
    """The rows of nodes on the screen, by columns."""
    one = Overview("InferenceEndpointConfig", "llm", "llama", "Caching", "c", "k", (), lines, (), (), None)
    _print(one, NOW)
    rows = capsys.readouterr().out.splitlines()
    return [[cell for cell in row.split("  ") if cell] for row in rows if row.startswith("node-")]


def test_one_line_of_a_node_says_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    (fetching, ready) = shown(capsys, FETCHING, READY)
    columns = ["node-3", "fetching 43%", "61.0 GB of 140.0 GB", "812.0 MB/s", "1m37s", "-", "Filling", "-"]
    assert [cell.strip() for cell in fetching] == columns
    assert [cell.strip() for cell in ready] == ["node-4", "ready", "140.0 GB", "-", "-", "10m ago", "-", "-"]


def test_of_a_node_whose_agent_is_silent_it_is_not_said_what_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World()
    world.settle()
    world.now += SILENT_SECONDS
    world.run_agents(["node-0", "node-1"])
    found = overview(world.observed(), world.settings)
    (line,) = (one for one in found.nodes if one.node == "node-2")
    assert (line.state, line.reason) == ("unknown", "AgentSilent")
    (row,) = shown(capsys, line)
    assert [cell.strip() for cell in row][:3] == ["node-2", "unknown", "-"]


@pytest.mark.parametrize(
    ("seconds", "left"), [(0, "0s"), (59, "59s"), (60, "1m00s"), (7500, "2h05m"), (273_600, "3d04h")]
)
def test_a_time_left_is_in_its_two_largest_units(
    capsys: pytest.CaptureFixture[str], seconds: int, left: str
) -> None:
    (row,) = shown(capsys, FETCHING._replace(eta_seconds=seconds))
    assert row[4].strip() == left

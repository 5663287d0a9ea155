"""Random histories of a cluster: whatever happens, every promise of the operator holds at every step."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprep.failures import Reason as FailureReason
from cacheprep.plan.actions import Event, SetStatus
from tests.plan.world import World, spec

Happening = Callable[[World], None]

_NAMES = [f"node-{number}" for number in range(5)]
names = st.sampled_from(_NAMES)


def _on_node(act: Callable[[World, str], None]) -> st.SearchStrategy[Happening]:
    def of(name: str) -> Happening:
        return lambda world: act(world, name) if name in world.nodes else None

    return names.map(of)


def _edit_when_there(act: Happening) -> Happening:
    return lambda world: act(world) if world.endpoint is not None else None


def _source_changes(world: World) -> None:
    world.version += 1


def _time_passes(seconds: float) -> Happening:
    def pass_by(world: World) -> None:
        world.now += seconds

    return pass_by


nodes: st.SearchStrategy[Happening] = st.one_of(
    names.map(lambda name: lambda world: world.add_node(name)),
    _on_node(World.remove_node),
    _on_node(World.reboot),
    _on_node(World.wipe),
    _on_node(lambda world, name: world.change_node(name, unschedulable=True)),
    _on_node(lambda world, name: world.change_node(name, unschedulable=False, ready=True)),
    _on_node(lambda world, name: world.change_node(name, ready=False)),
)
failures: st.SearchStrategy[Happening] = st.sampled_from(list(FailureReason)).map(
    lambda reason: lambda world: world.run_jobs(reason)
)
edits: st.SearchStrategy[Happening] = st.sampled_from(
    [
        _edit_when_there(lambda world: world.edit(modelSource={"s3": {"uri": "s3://models/other/"}})),
        _edit_when_there(lambda world: world.edit(modelSource={"s3": {"uri": "s3://models/llama/"}})),
        _edit_when_there(lambda world: world.image("vllm/vllm-openai:v2")),
        _edit_when_there(lambda world: world.edit(modelCacheConfig={"weightsCache": {"enabled": False}})),
        _edit_when_there(lambda world: world.edit(modelCacheConfig={"weightsCache": {"enabled": True}})),
        _edit_when_there(lambda world: world.edit(replicas=3)),
        _edit_when_there(lambda world: world.edit(replicas=None, autoscaling={"external": {}})),
        _edit_when_there(lambda world: world.policy(gate=2)),
        _edit_when_there(lambda world: world.policy(gate="none")),
        _edit_when_there(lambda world: world.policy(rollover="breakBeforeMake")),
        _edit_when_there(lambda world: world.policy(drift={"onDrift": "rollOver"})),
        _source_changes,
    ]
)
others: st.SearchStrategy[Happening] = st.sampled_from(
    [
        World.run_jobs,
        World.run_agents,
        World.run_deployment,
        World.run_daemon_sets,
        World.run_all,
        _time_passes(61),
        _time_passes(3700),
        _time_passes(25 * 3600),
    ]
)
steps: st.SearchStrategy[Happening] = st.one_of(
    st.just(World.round),
    st.just(World.rest),
    # The controller is killed between two actions.
    st.integers(1, 6).map(lambda most: lambda world: world.step(most)),
)
anything = st.one_of(others, nodes, failures, edits)
histories = st.builds(
    lambda rounds, pairs: [World.round] * rounds + [one for pair in pairs for one in pair],
    # From just created to serving.
    st.integers(0, 6),
    st.lists(st.tuples(anything, steps), max_size=15),
)
"""Something happens, the operator does something about it, and again."""


@settings(max_examples=120)
@given(histories)
def test_no_promise_is_broken_and_it_settles_to_a_plan_that_is_empty(history: list[Happening]) -> None:
    world = World()
    for happening in history:
        happening(world)
    world.settle()
    assert world.step().actions == ()


@settings(max_examples=50)
@given(histories)
def test_an_event_is_written_for_a_condition_that_has_changed_and_once(history: list[Happening]) -> None:
    world = World()
    for happening in history:
        happening(world)
    world.settle()
    before: dict[str, tuple[str, str]] = {}
    after: dict[str, tuple[str, str]] = {}
    for action in world.finished:
        if isinstance(action, SetStatus) and action.kind == "InferenceEndpointConfig":
            conditions = action.status.get("conditions", ())
            before, after = after, {one["type"]: (one["status"], one["reason"]) for one in conditions}
        elif isinstance(action, Event):
            condition, _, status = action.message.partition(":")[0].partition(" is ")
            if status:
                said = status, action.reason
                assert after[condition] == said != before.get(condition), action
                before[condition] = said


@settings(max_examples=50)
@given(histories)
def test_deletion_always_ends_and_leaves_nothing(history: list[Happening]) -> None:
    world = World()
    for happening in history:
        happening(world)
    world.delete()
    world.settle()
    assert world.endpoint is None
    assert world.left() == []


@settings(max_examples=50)
@given(histories)
def test_deletion_ends_also_if_nobody_confirms_anything(history: list[Happening]) -> None:
    world = World()
    for happening in history:
        happening(world)
    world.delete()
    for _ in range(6):
        world.step()
        world.now += 1000
    assert world.endpoint is None


@settings(max_examples=50)
@given(histories)
def test_all_target_nodes_are_verified_in_the_end(history: list[Happening]) -> None:
    world = World(endpoint=spec(cachePolicy={"drift": {"enabled": False}}))
    for happening in history:
        happening(world)
    if world.endpoint is None:
        return
    # What the source had before it changed nobody can fetch any more.
    policy = {"onGateTimeout": "wait", "drift": {"onDrift": "rollOver"}}
    world.edit(modelCacheConfig={"weightsCache": {"enabled": True}}, cachePolicy=policy)
    for _ in range(4):
        world.settle()
        world.now += 30_000
    world.settle()
    assert world.endpoint["status"]["ready"] == world.endpoint["status"]["target"]

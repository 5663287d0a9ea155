"""What bench.coldstart makes of starts of pods: steps, rates, lines and where these lead."""

from __future__ import annotations

from typing import Any

import pytest

from bench.coldstart.figures import line, spread
from bench.coldstart.pods import Start, Step, steps
from bench.coldstart.throttle import Reading, rate
from e2e.cluster.command import ClusterError

GB = 1e9


def pod(**status: Any) -> dict[str, Any]:
    return {"spec": {"nodeName": "node-1"}, "status": status}


def container(name: str, **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}


class TestSteps:
    def test_a_pod_without_node_has_nothing_behind_it(self) -> None:
        assert steps({"spec": {}}) == set()

    def test_weights_are_there_when_the_init_container_has_ended_well(self) -> None:
        running = pod(initContainerStatuses=[container("warmroute-ensure", running={})])
        ended = pod(initContainerStatuses=[container("warmroute-ensure", terminated={"exitCode": 0})])
        assert steps(running) == {Step.SCHEDULED}
        assert steps(ended) == {Step.SCHEDULED, Step.WEIGHTS}

    def test_an_image_is_there_when_the_engine_runs(self) -> None:
        pulling = pod(containerStatuses=[container("engine", waiting={"reason": "PodInitializing"})])
        running = pod(containerStatuses=[container("engine", running={})])
        assert Step.IMAGE not in steps(pulling)
        assert Step.IMAGE in steps(running)

    def test_ready_is_what_the_condition_says(self) -> None:
        assert Step.READY not in steps(pod(conditions=[{"type": "Ready", "status": "False"}]))
        assert Step.READY in steps(pod(conditions=[{"type": "Ready", "status": "True"}]))

    def test_a_container_that_fails_ends_the_measurement_with_its_words(self) -> None:
        said = {"exitCode": 3, "message": "AccessDenied: s3://models/"}
        failed = pod(
            initContainerStatuses=[
                {"name": "warmroute-ensure", "state": {"waiting": {}}, "lastState": {"terminated": said}}
            ]
        )
        with pytest.raises(ClusterError, match=r"warmroute-ensure ended with 3: AccessDenied: s3://models/"):
            steps(failed)

    def test_spans_lie_between_the_steps(self) -> None:
        at = {Step.SCHEDULED: 0.5, Step.WEIGHTS: 10.5, Step.IMAGE: 20.0, Step.READY: 22.0}
        start = Start("node-1", at, 1, 1.0)
        assert start.seconds == 22.0
        assert start.spans() == {
            Step.SCHEDULED: 0.5,
            Step.WEIGHTS: 10.0,
            Step.IMAGE: 9.5,
            Step.READY: 2.0,
        }


class TestRate:
    def test_time_before_and_after_a_transfer_does_not_count(self) -> None:
        moving = [Reading(10 + at / 10, at * 1_000) for at in range(101)]
        idle = [Reading(at, 0) for at in range(10)]
        after = [Reading(21 + at, 100_000) for at in range(10)]
        assert rate([*idle, *moving, *after]) == pytest.approx(10_000)

    def test_the_rate_of_nothing_is_0(self) -> None:
        assert rate([]) == 0
        assert rate([Reading(0, 7), Reading(1, 7)]) == 0


class TestLine:
    def test_points_on_a_line_give_that_line(self) -> None:
        found = line([(GB, 14.0), (GB, 14.0), (3 * GB, 34.0)])
        assert found.intercept == pytest.approx(4)
        assert found.slope * GB == pytest.approx(10)
        assert found.at(145 * GB) == pytest.approx(1454)
        assert found.error(145 * GB) == pytest.approx(0, abs=1e-6)

    def test_the_error_grows_with_the_distance_from_what_was_measured(self) -> None:
        # By hand: 13, 15 at 1 and 33, 35 at 3 are each 1 off 4 + 10 x; s² = 4 / 2, the sum of squares is 4.
        found = line([(GB, 13.0), (GB, 15.0), (3 * GB, 33.0), (3 * GB, 35.0)])
        assert found.error(2 * GB) == pytest.approx((2 / 4) ** 0.5)
        assert found.error(102 * GB) == pytest.approx((2 * (1 / 4 + 100**2 / 4)) ** 0.5)

    def test_a_line_leads_nowhere_where_points_do_not_show_it(self) -> None:
        assert line([(GB, 13.0), (GB, 15.0), (3 * GB, 33.0), (3 * GB, 35.0)]).shown
        assert not line([(GB, 5.0), (GB, 30.0), (3 * GB, 6.0), (3 * GB, 33.0)]).shown
        assert not line([(GB, 40.0), (GB, 41.0), (3 * GB, 30.0), (3 * GB, 31.0)]).shown

    def test_two_points_say_nothing_of_their_error(self) -> None:
        assert line([(GB, 14.0), (3 * GB, 34.0)]).error(GB) is None

    def test_points_of_one_size_are_no_line(self) -> None:
        with pytest.raises(ValueError, match="measure two"):
            line([(GB, 14.0), (GB, 15.0)])


def test_a_spread_has_median_and_extremes() -> None:
    assert spread([3.0, 1.0, 2.0, 9.0]) == (2.5, 1.0, 9.0, 4)

"""What is read from the conformance suite's words, and from the routes of the gateway that it tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from e2e.conformance import page, pickers, weighted
from e2e.conformance.suite import Result, Run, read

SAID = """\
=== RUN   TestConformance
=== RUN   TestConformance/GatewayFollowingEPPRouting
=== RUN   TestConformance/GatewayFollowingEPPRouting/should_route_to_one_pod
--- FAIL: TestConformance (45.00s)
    --- PASS: TestConformance/GatewayFollowingEPPRouting (3.21s)
        --- PASS: TestConformance/GatewayFollowingEPPRouting/should_route_to_one_pod (0.20s)
    --- FAIL: TestConformance/EppUnAvailableFailOpen (200.02s)
    --- SKIP: TestConformance/InferencePoolAccepted (0.00s)
FAIL
"""

PRIMARY = "outbound|54321||primary-inference-pool-ip-1a2b3c4d.apps.svc.cluster.local"
SECONDARY = "outbound|54321||secondary-inference-pool-ip-5e6f7a8b.apps.svc.cluster.local"
LAST_PICKER = "outbound|9002||secondary-picker.apps.svc.cluster.local"

MANIFEST = """\
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: primary-inference-pool, namespace: apps}
spec: {endpointPickerRef: {name: primary-picker, port: {number: 9002}}}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: secondary-inference-pool, namespace: apps}
spec: {endpointPickerRef: {name: secondary-picker, port: {number: 9002}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: picker, namespace: apps}
spec: {template: {spec: {containers: [{name: epp, image: "registry.example/epp:v1"}]}}}
---
"""


def asking(cluster: str) -> dict[str, object]:
    overrides = {"failure_mode_allow": True, "grpc_service": {"envoy_grpc": {"cluster_name": cluster}}}
    return {weighted.FILTER: {"@type": "type.googleapis.com/ExtProcPerRoute", "overrides": overrides}}


def route() -> dict[str, object]:
    """As Istio writes it: the picker is the route's, so it is asked whichever cluster is drawn."""
    clusters = [{"name": PRIMARY, "weight": 70}, {"name": SECONDARY, "weight": 30}]
    return {
        "name": "rule",
        "match": {"path_separated_prefix": weighted.PATH},
        "route": {"weighted_clusters": {"clusters": clusters}, "timeout": "0s"},
        "typed_per_filter_config": asking(LAST_PICKER),
    }


@pytest.fixture
def by_pool(tmp_path: Path) -> dict[str, tuple[str, str]]:
    (tmp_path / "base.yaml").write_text(MANIFEST)
    return pickers.by_pool(tmp_path / "base.yaml")


def test_the_tests_that_ended_are_read_and_their_parts_are_not() -> None:
    assert list(read(SAID)) == [
        Result("EppUnAvailableFailOpen", "FAIL", 200.02),
        Result("GatewayFollowingEPPRouting", "PASS", 3.21),
        Result("InferencePoolAccepted", "SKIP", 0.0),
    ]


def test_a_suite_that_did_not_come_to_a_test_has_no_results() -> None:
    assert list(read("--- FAIL: TestConformance (1.00s)\nFAIL\n")) == []


def test_a_pool_s_picker_and_the_images_asked_for_are_those_of_the_manifest(
    tmp_path: Path, by_pool: dict[str, tuple[str, str]]
) -> None:
    assert by_pool == {
        "primary-inference-pool": ("apps", "primary-picker"),
        "secondary-inference-pool": ("apps", "secondary-picker"),
    }
    assert pickers.asked_for(tmp_path / "base.yaml") == {"epp": "registry.example/epp:v1"}


def test_one_picker_is_seen_where_the_route_has_it_and_two_where_each_cluster_has_its_own(
    by_pool: dict[str, tuple[str, str]],
) -> None:
    seen = weighted.told(route())
    assert seen.clusters == ((PRIMARY, 70), (SECONDARY, 30))
    assert seen.pickers == (LAST_PICKER,)
    (patch,) = weighted.mended(seen, by_pool)["spec"]["configPatches"]
    assert patch["patch"]["operation"] == "INSERT_FIRST"
    mended = weighted.told(patch["patch"]["value"])
    assert mended.clusters == seen.clusters
    assert mended.pickers == (
        "outbound|9002||primary-picker.apps.svc.cluster.local",
        "outbound|9002||secondary-picker.apps.svc.cluster.local",
    )


def test_what_else_the_gateway_says_of_the_picker_and_the_route_stays(
    by_pool: dict[str, tuple[str, str]],
) -> None:
    (patch,) = weighted.mended(weighted.told(route()), by_pool)["spec"]["configPatches"]
    mended = patch["patch"]["value"]
    assert mended["match"] == route()["match"]
    assert mended["route"]["timeout"] == "0s"
    for cluster in mended["route"]["weighted_clusters"]["clusters"]:
        settings = cluster["typed_per_filter_config"][weighted.FILTER]
        assert settings["overrides"]["failure_mode_allow"] is True
        assert settings["@type"] == "type.googleapis.com/ExtProcPerRoute"


def test_the_page_s_table_has_each_test_with_each_picker() -> None:
    runs = {
        "extproc": Run((Result("A", "PASS", 1.0), Result("B", "FAIL", 2.0)), "", ""),
        "reference": Run((Result("A", "PASS", 3.0),), "", ""),
    }
    text = page.text(runs, weighted.told(route()), Result("B", "PASS", 4.0))
    assert "| A | passed, 1.0 s | passed, 3.0 s |" in text
    assert "| B | **failed**, 2.0 s | not run |" in text
    assert "| passed | 1 of 2 | 1 of 1 |" in text
    assert f"`{LAST_PICKER}`" in text


@pytest.mark.parametrize("picker", ["extproc", "reference"])
def test_the_page_says_what_the_suite_s_own_report_says(picker: str) -> None:
    (profile,) = yaml.safe_load((page.REPORTS / f"{picker}.yaml").read_text())["profiles"]
    rows = [line.split("|") for line in page.PAGE.read_text().splitlines() if line.startswith("| ")]
    (header,) = (row for row in rows if row[1].strip() == "test")
    column = [cell.strip(" `") for cell in header].index(f"with `{picker}")
    said = {row[1].strip(): row[column].strip() for row in rows if len(row) == len(header)}
    failed = {name for name, cell in said.items() if cell.startswith("**failed**")}
    statistics = profile["core"]["statistics"]
    assert failed == set(profile["core"].get("failedTests") or ())
    assert statistics["Failed"] == len(failed)
    passed = [cell for cell in said.values() if re.match(r"passed, ", cell)]
    assert statistics["Passed"] == len(passed)

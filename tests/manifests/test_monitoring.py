"""Alerts and dashboard ask for metrics that the router has, with labels and values that these have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml
from prometheus_client import CollectorRegistry

from extproc.metrics import REASONS, Metrics, PoolState, TlsMetrics
from extproc.pool.discovery.found import NodeCache
from extproc.pool.discovery.metrics import DiscoveryMetrics
from extproc.pool.reports import EngineReport
from extproc.pool.scraping.metrics import RESULTS, EngineState, ScrapeMetrics
from extproc.sharing.metrics import SharingMetrics

MONITORING = Path(__file__).parents[2] / "manifests" / "monitoring"

VALUES = {
    "reason": set(REASONS),
    "outcome": {"first_choice", "retry", "untried", "none"},
    "state": {"eligible", "suspect", "known", "unknown", "connected", "unreachable"},
    "result": set(RESULTS),
    "node_cache": {*get_args(NodeCache), ""},
}
"""Label values that are words of the code."""

ADDED = {"pod", "job", "namespace", "le"}
"""Labels of Prometheus' own: of a target, and of a histogram's buckets."""


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """The names of all samples that a router can show, with their labels."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.watch(
        lambda: [PoolState("llm", True, ["10.0.0.1:8000"], {"10.0.0.1:8000": 1}, ["10.0.0.1:8000"])]
    )
    metrics.pool("llm", "PREFIX_AWARE")
    metrics.stream_error("Error")
    metrics.read(None, 1)
    metrics.config.reloaded(0)
    TlsMetrics(registry).certificate(lambda: 1.0)
    scrapes = ScrapeMetrics(registry)
    scrapes.pool("llm")
    report = EngineReport(running=1, waiting=1, kv_usage=0.5)
    scrapes.watch(lambda: [("llm", [EngineState("10.0.0.1:8000", True, report, 1.0)])])
    sharing = SharingMetrics(registry)
    sharing.watch(lambda: (1, 1))
    with DiscoveryMetrics(registry).of("llm") as observer:
        observer.watching("pods")
        observer.failed("pods", "forbidden")
        return {sample.name: set(sample.labels) for family in registry.collect() for sample in family.samples}


def expressions() -> Iterator[tuple[str, str]]:
    """Every question to Prometheus, with where it stands."""
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


@pytest.mark.parametrize(("title", "expression"), list(expressions()), ids=lambda value: str(value)[:40])
def test_every_question_is_about_something_that_the_router_says(
    known: dict[str, set[str]], title: str, expression: str
) -> None:
    asked = list(re.finditer(r"\b(?:extproc|process)_[a-z0-9_]+\b(?:\{(?P<labels>[^}]*)\})?", expression))
    assert asked, f"{title} asks for no metric"
    labels: set[str] = set(ADDED)
    for match in asked:
        name = match[0].partition("{")[0]
        assert name in known, f"{title}: {name}"
        labels |= known[name]
        for label, value in re.findall(r'([a-z_]+)[!=]~?"([^"]*)"', match["labels"] or ""):
            assert label in known[name] | ADDED, f"{title}: {name} has no label {label}"
            if label in VALUES:
                assert value in VALUES[label], f"{title}: {label} is never {value}"
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        for label in grouped.split(","):
            assert label.strip() in labels, f"{title}: no label {label.strip()}"


def test_every_alert_says_what_it_means_and_how_bad_it_is() -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["spec"]["groups"][0]["rules"]
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"].endswith(".")
        for label in re.findall(r"\$labels\.([a-z_]+)", rule["annotations"]["summary"]):
            assert label in rule["expr"], f"{rule['alert']}: {label} is summed away"

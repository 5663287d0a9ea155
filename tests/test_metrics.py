"""What Prometheus sees of the router."""

from __future__ import annotations

import random
import re
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from extproc import __version__
from extproc.address import Address
from extproc.metrics import PICK_BUCKETS, REASONS, Metrics, PoolState, serve
from extproc.pool.discovery.found import NodeCache, Place
from extproc.pool.discovery.metrics import DiscoveryMetrics
from extproc.pool.scraping.metrics import ScrapeMetrics
from extproc.prompt import Prompt, Scope
from extproc.routing.pick import Reason

ROOT = Path(__file__).parent.parent

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000"


class Seen:
    """A registry with the router's metrics, and their values by name and labels."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"extproc_{name}", labels)


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_the_version_is_told(seen: Seen) -> None:
    assert seen("build_info", version=__version__) == 1


def test_the_process_is_measured_too(seen: Seen) -> None:
    said = generate_latest(seen.registry).decode()
    assert "process_cpu_seconds_total" in said
    assert "python_info" in said


def test_every_metric_of_the_router_is_explained_and_named_by_its_unit(seen: Seen) -> None:
    seen.metrics.watch(list)
    ScrapeMetrics(seen.registry).watch(list)
    ours = [
        family
        for family in text_string_to_metric_families(generate_latest(seen.registry).decode())
        if family.name.startswith("extproc_")
    ]
    assert len(ours) >= 15
    for family in ours:
        assert family.documentation.endswith((".", "(not said).")), family.name
        if family.name.endswith("_seconds"):
            assert "in seconds" in family.documentation
    assert not [family.name for family in ours if family.name.endswith("_created")]


@pytest.mark.parametrize(
    "page", ["README.md", "docs/configuration.md", "docs/kubernetes.md", "docs/replay.md"]
)
def test_the_documentation_names_only_metrics_that_exist(seen: Seen, page: str) -> None:
    seen.metrics.watch(list)
    ScrapeMetrics(seen.registry).watch(list)
    DiscoveryMetrics(seen.registry)
    named = set(re.findall(r"`(extproc_[a-z_]+)", (ROOT / page).read_text()))
    exist = set(re.findall(r"^# HELP (\S+)", generate_latest(seen.registry).decode(), flags=re.MULTILINE))
    assert named
    assert named <= exist


def test_requests_are_counted_by_pool_strategy_and_reason(seen: Seen) -> None:
    pool = seen.metrics.pool("llama", "PREFIX_AWARE")
    pool.reason("prefix", "warm")
    pool.reason("prefix", "warm")
    pool.reason("spill", "cold")
    labels = {"pool": "llama", "strategy": "PREFIX_AWARE"}
    assert seen("requests_total", **labels, reason="prefix", node_cache="warm") == 2
    assert seen("requests_total", **labels, reason="prefix", node_cache="cold") == 0
    assert seen("requests_total", **labels, reason="spill", node_cache="cold") == 1
    assert seen("requests_total", **labels, reason="shed", node_cache="") == 0


def test_every_reason_of_a_pick_is_there_from_the_start(seen: Seen) -> None:
    seen.metrics.pool("llama", "RANDOM")
    assert set(get_args(Reason)) < set(REASONS)
    labels = {"pool": "llama", "strategy": "RANDOM"}
    for reason in REASONS:
        for cache in ("",) if reason in ("shed", "empty", "unpinned") else get_args(NodeCache):
            assert seen("requests_total", **labels, reason=reason, node_cache=cache) == 0
    (described,) = (one for one in seen.registry.collect() if one.name == "extproc_requests")
    assert all(reason in described.documentation for reason in REASONS)


def test_a_reload_goes_on_counting(seen: Seen) -> None:
    seen.metrics.pool("llama", "RANDOM").reason("random", "unknown")
    seen.metrics.pool("llama", "RANDOM").reason("random", "unknown")
    labels = {"pool": "llama", "strategy": "RANDOM", "reason": "random"}
    assert seen("requests_total", **labels, node_cache="unknown") == 2


def test_requests_of_no_pool_are_counted_as_unpinned(seen: Seen) -> None:
    seen.metrics.unmatched()
    assert seen("requests_total", pool="", strategy="", reason="unpinned", node_cache="") == 1


def test_who_served_is_counted_per_pool(seen: Seen) -> None:
    pool = seen.metrics.pool("llama", "RANDOM")
    pool.served_first()
    pool.served_first()
    pool.served_retry()
    pool.served_unknown()
    assert [seen("served_total", pool="llama", outcome=o) for o in ("first_choice", "retry", "none")] == [
        2,
        1,
        1,
    ]


def test_the_time_of_a_pick_is_told_apart_from_20_us_to_10_ms(seen: Seen) -> None:
    pool = seen.metrics.pool("llama", "RANDOM")
    for seconds in (10e-6, 150e-6, 3e-3, 1.0):
        pool.took(seconds)
    assert (PICK_BUCKETS[0], PICK_BUCKETS[-1]) == (20e-6, 10e-3)
    assert seen("pick_seconds_bucket", le="2e-05") == 1
    assert seen("pick_seconds_bucket", le="0.0002") == 2
    assert seen("pick_seconds_bucket", le="0.01") == 3
    assert seen("pick_seconds_count") == 4


def test_bodies_are_counted_by_api_and_by_whether_their_scope_was_seen(seen: Seen) -> None:
    seen.metrics.read(Prompt("chat", Scope(), []), 100)
    seen.metrics.read(Prompt("chat", Scope(partial=True), []), 10)
    seen.metrics.read(None, 1)
    assert seen("prompts_total", api="chat", scope="complete") == 1
    assert seen("prompts_total", api="chat", scope="partial") == 1
    assert seen("prompts_total", api="none", scope="complete") == 1
    assert seen("body_bytes_total") == 111


def test_a_request_without_a_body_is_no_prompt(seen: Seen) -> None:
    seen.metrics.read(None, 0)
    assert seen("prompts_total", api="none", scope="complete") is None


def test_streams_are_counted_while_they_are_open(seen: Seen) -> None:
    seen.metrics.stream(1)
    seen.metrics.stream(1)
    seen.metrics.stream(-1)
    assert seen("streams") == 1


def test_errors_and_unexpected_messages_are_counted(seen: Seen) -> None:
    seen.metrics.stream_error("DecodeError")
    seen.metrics.unexpected_message()
    assert seen("stream_errors_total", kind="DecodeError") == 1
    assert seen("unexpected_messages_total") == 1


def test_label_values_are_bounded_whatever_a_caller_passes(seen: Seen) -> None:
    for n in range(1000):
        seen.metrics.stream_error(f"kind-{n}")
        seen.metrics.read(Prompt(f"api-{n}", Scope(), []), 1)
        seen.metrics.pool("llama", "RANDOM").reason(f"reason-{n}")
    said = generate_latest(seen.registry).decode()
    assert len(re.findall("^extproc_", said, flags=re.MULTILINE)) < 250
    errors = re.findall(r"^extproc_stream_errors_total\{.*\} (.*)$", said, flags=re.MULTILINE)
    assert sum(map(float, errors)) == 1000


class TestPools:
    def test_their_state_is_read_at_the_scrape(self, seen: Seen) -> None:
        in_flight = {A: 3, B: 0}
        seen.metrics.watch(lambda: [PoolState("llama", True, (A, B), in_flight, {B})])
        assert seen("in_flight_requests", pool="llama", endpoint=A) == 3
        in_flight[A] = 4
        assert seen("in_flight_requests", pool="llama", endpoint=A) == 4

    def test_endpoints_are_counted_by_state_and_suspects_are_named(self, seen: Seen) -> None:
        seen.metrics.watch(lambda: [PoolState("llama", True, (A, B, C), {}, {B})])
        assert seen("endpoints", pool="llama", state="eligible") == 2
        assert seen("endpoints", pool="llama", state="suspect") == 1
        assert [seen("endpoint_suspect", pool="llama", endpoint=e) for e in (A, B, C)] == [0, 1, 0]

    def test_an_endpoint_that_left_is_shown_while_requests_run_on_it(self, seen: Seen) -> None:
        seen.metrics.watch(lambda: [PoolState("llama", True, (A,), {A: 0, B: 2}, {B})])
        assert seen("in_flight_requests", pool="llama", endpoint=B) == 2
        assert seen("endpoints", pool="llama", state="eligible") == 1
        assert seen("endpoints", pool="llama", state="suspect") == 0

    def test_an_endpoint_found_in_kubernetes_says_where_it_runs(self, seen: Seen) -> None:
        places = {A: Place("engine-0", "node-1", "zone-a"), C: Place()}
        seen.metrics.watch(lambda: [PoolState("llama", True, (A, C), {}, (), {A: "cold"}, places)])
        about = {"pool": "llama", "endpoint": A, "pod": "engine-0", "node": "node-1", "zone": "zone-a"}
        assert seen("endpoint_info", **about, node_cache="cold") == 1
        nowhere = {"pool": "llama", "endpoint": C, "pod": "", "node": "", "zone": ""}
        assert seen("endpoint_info", **nowhere, node_cache="unknown") == 1

    def test_a_pool_that_was_never_synced_says_so(self, seen: Seen) -> None:
        seen.metrics.watch(lambda: [PoolState("llama", False, (), {}, ())])
        assert seen("pool_synced", pool="llama") == 0

    def test_a_pool_that_is_gone_is_not_reported(self, seen: Seen) -> None:
        pools = [PoolState("llama", True, (A,), {A: 1}, ())]
        seen.metrics.watch(lambda: pools)
        pools.clear()
        assert seen("in_flight_requests", pool="llama", endpoint=A) is None

    def test_if_it_cannot_be_read_the_rest_is_still_there_and_the_log_says_so(self, seen: Seen) -> None:
        def broken() -> list[PoolState]:
            raise RuntimeError("dictionary changed size during iteration")

        seen.metrics.watch(broken)
        with capture_logs() as logged:
            said = generate_latest(seen.registry).decode()
        assert "extproc_build_info" in said
        assert "extproc_in_flight_requests{" not in said
        assert [event["log_level"] for event in logged] == ["error"]


class TestServing:
    @pytest.fixture
    def address(self, seen: Seen) -> Iterator[Address]:
        served = serve(Address("127.0.0.1", 0), seen.registry)
        yield served.address
        served.stop()

    def test_a_scrape_gets_the_metrics(self, address: Address) -> None:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
            assert response.headers["Content-Type"].startswith("text/plain")
            assert b"extproc_build_info" in response.read()

    def test_a_port_in_use_is_named(self, address: Address, seen: Seen) -> None:
        with pytest.raises(OSError) as caught:
            serve(address, seen.registry)
        assert str(caught.value) == f"metrics cannot listen on {address}: another process listens there"

    def test_an_address_of_another_machine_is_named(self, seen: Seen) -> None:
        with pytest.raises(OSError, match=r"192\.0\.2\.1:9: not an address of this machine"):
            serve(Address("192.0.2.1", 9), seen.registry)

    def test_stopping_frees_the_port_and_leaves_no_thread(self, seen: Seen) -> None:
        before = set(threading.enumerate())
        served = serve(Address("127.0.0.1", 0), seen.registry)
        served.stop()
        again = serve(served.address, seen.registry)
        again.stop()
        assert set(threading.enumerate()) <= before


def test_counting_from_several_threads_loses_nothing(seen: Seen) -> None:
    pool = seen.metrics.pool("llama", "RANDOM")
    draw = random.Random(1)
    reasons = [draw.choice(REASONS) for _ in range(2000)]

    def count() -> None:
        for reason in reasons:
            pool.reason(reason)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = sum(
        seen("requests_total", pool="llama", strategy="RANDOM", reason=reason, node_cache="") or 0
        for reason in REASONS
    )
    assert total == 4 * 2000

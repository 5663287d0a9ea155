"""What an engine's metrics page says of its load."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from bench.scrape.page import registry
from extproc.pool.reports import EngineReport
from extproc.pool.scraping.page import MAX_PAGE_BYTES, MOST_REQUESTS, Unreadable, parse
from tests.pool import pages


def report(page: bytes) -> EngineReport:
    read = parse(page)
    assert isinstance(read, EngineReport), read
    return read


def reason(page: bytes) -> str:
    read = parse(page)
    assert isinstance(read, Unreadable), read
    return read.reason


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        pytest.param(
            pages.VLLM,
            EngineReport(7, 3, 0.25, 300_000, 50, 12.5, queried_tokens=2_000_000, hit_tokens=1_500_000),
            id="vllm",
        ),
        pytest.param(
            pages.VLLM_WITHOUT_SOURCES,
            EngineReport(7, 3, 0.25, 250_000, 50, 12.5, queried_tokens=2_000_000, hit_tokens=1_500_000),
            id="vllm-before-sources",
        ),
        pytest.param(pages.VLLM_V0, EngineReport(2, 0, 0.5, computed_tokens=1000), id="vllm-v0"),
        pytest.param(
            pages.SGLANG,
            EngineReport(12, 5, 0.28, 600, 8, 2.5, queried_tokens=1000, hit_tokens=400),
            id="sglang",
        ),
        pytest.param(
            pages.SGLANG_WITHOUT_REALTIME,
            EngineReport(12, 5, 0.28, 550, 8, 2.5, queried_tokens=900, hit_tokens=350),
            id="sglang-before-realtime-counts",
        ),
        pytest.param(
            pages.TRTLLM,
            EngineReport(16, 2, 0.75, 6000, 20, 3.5, queried_tokens=10_000, hit_tokens=4000),
            id="trtllm-serve",
        ),
        pytest.param(pages.TRITON, EngineReport(6, 4, 0.4875), id="triton"),
    ],
)
def test_each_engine_is_read_in_its_own_names(page: bytes, expected: EngineReport) -> None:
    assert report(page) == pytest.approx(expected)


class TestSeveralEnginesInOnePage:
    def test_counts_of_data_parallel_engines_are_added_and_fractions_averaged(self) -> None:
        read = report(pages.VLLM_DATA_PARALLEL)
        assert (read.running, read.waiting) == (10, 1)
        assert (read.prefills, read.prefill_s) == (40, 12)
        assert read.kv_usage == pytest.approx((0.2 + 0.6) / 2)

    def test_ranks_that_work_on_the_same_requests_count_once(self) -> None:
        read = report(pages.SGLANG_EVERY_RANK)
        assert (read.running, read.waiting) == (3 + 4, 1)
        assert read.kv_usage == pytest.approx(0.6)

    def test_a_breakdown_by_priority_is_not_added_to_its_total(self) -> None:
        assert report(pages.SGLANG_PRIORITIES)[:2] == (5, 1)


class TestOlderNames:
    def test_the_gpu_names_of_vllm_count_where_the_newer_are_absent(self) -> None:
        page = (
            b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:gpu_cache_usage_perc 0.5\n"
            b"vllm:gpu_prefix_cache_queries_total 100\nvllm:gpu_prefix_cache_hits_total 40\n"
        )
        assert report(page) == EngineReport(1, 0, 0.5, queried_tokens=100, hit_tokens=40)
        newer = b"vllm:kv_cache_usage_perc 0.25\nvllm:prefix_cache_queries_total 10\n"
        assert report(page + newer) == EngineReport(1, 0, 0.25, queried_tokens=10, hit_tokens=10)

    def test_tokens_that_trtllm_computed_are_told_by_its_blocks_where_it_counts_no_cached_tokens(
        self,
    ) -> None:
        page = b"\n".join(line for line in pages.TRTLLM.splitlines() if b"cached_tokens" not in line)
        assert report(page).computed_tokens == pytest.approx(10_000 * 30 / 40)


class TestWhatTheFormatAllows:
    def test_labels_may_hold_anything(self) -> None:
        name = rb"a\"b} 5 ,priority=\"1\",pid=\"2\"{ \\"
        page = b'vllm:num_requests_running{model_name="%s"} 3\nvllm:num_requests_waiting{a="b"} 1' % name
        assert report(page)[:2] == (3, 1)

    def test_timestamps_spaces_and_a_missing_last_newline(self) -> None:
        page = b'vllm:num_requests_running{a="b"}  3.0 1796019000000\nvllm:num_requests_waiting \t4'
        assert report(page)[:2] == (3, 4)

    def test_a_user_s_own_label_called_like_one_that_tells_figures_apart(self) -> None:
        page = b'sglang:num_running_reqs{mode="prod",source="a"} 3\nsglang:num_queue_reqs{stage="b"} 1\n'
        assert report(page)[:2] == (3, 1)

    def test_comments_and_longer_names_are_no_samples(self) -> None:
        page = (
            b"# HELP vllm:num_requests_running 5\nvllm:num_requests_running_max 9\n"
            b"xvllm:num_requests_running 9\n vllm:num_requests_running 9\n"
            b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
        )
        assert report(page)[:2] == (1, 0)

    @pytest.mark.parametrize("openmetrics", [False, True])  # the latter has _ for each colon
    def test_it_is_read_as_the_client_library_writes_it(self, openmetrics: bool) -> None:
        registry = CollectorRegistry()
        labels = ["model_name", "engine"]
        for name, value in (("running", 4), ("waiting", 2)):
            Gauge(f"vllm:num_requests_{name}", "x", labels, registry=registry).labels("m", "0").set(value)
        Counter("vllm:prefix_cache_queries", "x", labels, registry=registry).labels("m", "0").inc(1e9)
        Counter("vllm:prefix_cache_hits", "x", labels, registry=registry).labels("m", "0").inc(5e8)
        prefill = Histogram("vllm:request_prefill_time_seconds", "x", labels, registry=registry)
        prefill.labels("m", "0").observe(0.5)
        page = (generate_openmetrics if openmetrics else generate_latest)(registry)
        assert report(page) == EngineReport(4, 2, 0.0, 0.0, 1, 0.5, queried_tokens=1e9, hit_tokens=5e8)


@pytest.mark.parametrize("engines", [1, 8])
def test_the_whole_page_of_a_server_with_several_engines_is_read(engines: int) -> None:
    read = report(generate_latest(registry(engines, running=3)))
    assert (read.running, read.waiting, read.kv_usage) == (3 * engines, 3 * engines, 0.5)
    assert read.computed_tokens == 123_456 * engines
    assert read.prefills == 7 * engines


class TestUnknownIsNotZero:
    def test_a_page_without_running_or_waiting_gives_no_report_and_names_what_is_missing(self) -> None:
        assert reason(b"vllm:num_requests_running 1\n").startswith("vLLM does not say num_requests_waiting")
        assert "num_requests_running and num_requests_waiting" in reason(b"vllm:prompt_tokens_total 5\n")

    def test_trtllm_before_its_first_batch_is_told_what_it_needs(self) -> None:
        assert "enable_iter_perf_stats" in reason(pages.TRTLLM_BEFORE_ITS_FIRST_BATCH)

    @pytest.mark.parametrize(
        "value", [b"NaN", b"-1", b"+Inf", b"-Inf", b"", b"1e", b"0x10", b"many", b"\xff"]
    )
    def test_a_count_that_is_none_is_missing(self, value: bytes) -> None:
        page = b"vllm:num_requests_running " + value + b"\nvllm:num_requests_waiting 0\n"
        assert "num_requests_running" in reason(page)

    def test_more_requests_than_any_engine_holds_are_not_believed(self) -> None:
        for value in (b"1e300", b"%d" % (MOST_REQUESTS + 1)):
            page = b"vllm:num_requests_running " + value + b"\nvllm:num_requests_waiting 0\n"
            assert "requests" in reason(page)

    def test_another_server_s_page_is_said_to_be_one(self) -> None:
        assert "no metrics of vLLM" in reason(pages.NO_ENGINE)
        assert "no metrics of vLLM" in reason(b"<html>vllm:num_requests_running 1</html>")

    def test_trtllm_s_json_is_answered_with_the_path_of_its_page(self) -> None:
        assert "/prometheus/metrics" in reason(b'[{"iter": 1}]')
        assert "/prometheus/metrics" in reason(b'\n{"iter": 1}')

    def test_an_empty_page_is_said_to_be_empty(self) -> None:
        assert reason(b"") == reason(b" \n") == "the page is empty"


def test_figures_that_are_not_numbers_are_left_out_and_the_rest_counts() -> None:
    page = (
        b"vllm:num_requests_running 1\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc NaN\n"
        b"vllm:prompt_tokens_total -5\nvllm:request_prefill_time_seconds_sum +Inf\n"
    )
    assert report(page) == EngineReport(1, 2)


def test_a_fraction_is_1_at_most_and_hits_are_no_more_than_look_ups() -> None:
    page = (
        b"vllm:num_requests_running 1\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 3\n"
        b"vllm:prefix_cache_queries_total 10\nvllm:prefix_cache_hits_total 20\nvllm:prompt_tokens_total 5\n"
    )
    read = report(page)
    assert (read.kv_usage, read.hit_tokens, read.computed_tokens) == (1.0, 10.0, 0.0)


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [line for page in vars(pages).values() if isinstance(page, bytes) for line in page.splitlines()]
        ),
        st.binary(max_size=40),
        st.builds(
            lambda name, labels, value: name + labels + b" " + value,
            st.sampled_from(
                [
                    b"vllm:num_requests_running",
                    b"vllm:num_requests_waiting",
                    b"sglang:num_queue_reqs",
                    b"trtllm_",
                ]
            ),
            st.sampled_from([b"", b"{}", b"{", b'{a="', b'{a="}"}', b'{engine="1",pid="2"}']),
            st.one_of(st.binary(max_size=8), st.floats().map(lambda value: repr(value).encode())),
        ),
    ),
    max_size=40,
)


@given(LINES, st.sampled_from([b"\n", b"\r\n", b"\n\n", b""]))
def test_no_page_raises_and_every_report_is_in_range(lines: list[bytes], end: bytes) -> None:
    read = parse(end.join(lines))
    if isinstance(read, EngineReport):
        assert 0 <= read.running <= MOST_REQUESTS
        assert 0 <= read.waiting <= MOST_REQUESTS
        assert 0.0 <= read.kv_usage <= 1.0
        assert all(0.0 <= figure < float("inf") for figure in read)
        assert read.hit_tokens <= read.queried_tokens


@given(st.integers(0, len(pages.VLLM)))
def test_a_page_cut_anywhere_is_unknown_or_what_it_said_so_far(at: int) -> None:
    read = parse(pages.VLLM[:at])
    if isinstance(read, EngineReport):
        assert read.running == 7
        assert read.waiting in (3, 0)  # 3.0 cut in its middle is still a number


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:prompt_tokens_total{",
        b'vllm:prompt_tokens_total{a="b"} 1\n',
        b"vllm:prompt_tokens_total ",
        b'vllm:prompt_tokens_total{a="\\\n',
        b"} ",
        b'a="b",',
        b"\n",
        b"\0",
        b"vllm:num_requests_running 1\n",
    ],
)
def test_the_largest_page_read_takes_no_longer_than_its_size_demands(line: bytes) -> None:
    page = b"vllm:prompt_tokens_total{" + line * (MAX_PAGE_BYTES // len(line))
    began = time.thread_time()
    parse(page)
    assert time.thread_time() - began < 10.0  # some 0.2 s; what grows with the square of it takes hours

"""An engine's metrics page: what it says of its load, read from Prometheus' text format.

Only the lines that are needed are looked at; nothing is raised whatever the page holds. The names come from

- vLLM: `vllm/v1/metrics/loggers.py`, and `vllm/engine/metrics.py` of the engine before it;
- SGLang: `python/sglang/srt/observability/metrics_collector.py`, and `scheduler_metrics_mixin.py` beside it
  for what the labels mean;
- TensorRT-LLM: `tensorrt_llm/metrics/collector.py` (trtllm-serve, at /prometheus/metrics), and
  `README.md` of triton-inference-server/tensorrtllm_backend (Triton, port 8002).

Which figure stands for running, waiting and KV cache follows the Gateway API Inference Extension
(`docs/proposals/003-model-server-protocol`).

One page may hold several engines (data parallel): counts are added up and fractions averaged. Ranks that work
on the same requests (tensor, pipeline and expert parallel), and processes that answer for one engine, count
once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from extproc.pool.reports import EngineReport

MAX_PAGE_BYTES = 4 * 1024 * 1024
"""A page is read up to here, and refused beyond. vLLM's has about 60 KB for each engine in it."""

MOST_SAMPLES = 10_000
"""A page with more of the wanted samples is refused: 12 for each engine are expected."""

LARGEST = 1e18
"""A figure above it is left out."""

MOST_REQUESTS = 10_000_000
"""An engine that says it holds more requests is not believed."""


class Unreadable(NamedTuple):
    """Why a page gave no report, in words that name the remedy."""

    reason: str


def parse(page: bytes) -> EngineReport | Unreadable:
    """What the engine whose page this is says of itself. Figures that it does not give are 0.

    `Unreadable` unless the page says how many requests run and wait: unknown is not zero.
    """
    text = b"\n" + page
    found = _PREFIX.search(text)
    if found is None:
        return _no_engine(page)
    dialect = _DIALECTS[found[1].decode()]
    lines = dialect.wanted.findall(text, found.start())
    if len(lines) > MOST_SAMPLES:
        return Unreadable(
            f"the page has {len(lines)} samples where {dialect.engine} has a few for each engine"
        )
    samples = _Samples(lines)
    missing = [name.decode() for name in (dialect.running, dialect.waiting) if samples.total(name) is None]
    if missing:
        return Unreadable(f"{dialect.engine} does not say {' and '.join(missing)}{dialect.remedy}")
    counts = _count(samples.total(dialect.running)), _count(samples.total(dialect.waiting))
    if max(counts) > MOST_REQUESTS:
        return Unreadable(f"{dialect.engine} says that it holds {max(counts)} requests")
    return dialect.read(samples)._replace(running=counts[0], waiting=counts[1])


class _Samples:
    """The samples that were wanted, by name; a name with a label's value is written `name{label="value"}`."""

    def __init__(self, lines: Iterable[tuple[bytes, bytes, bytes]]) -> None:
        """Each line is name, labels, value. A value that no count or fraction can have is left out."""
        self._values: dict[bytes, dict[bytes, float]] = {}
        for name, labels, value in lines:
            number = float(value)
            if number > LARGEST or (b"priority=" in labels and _ONE_PRIORITY.search(labels)):
                continue
            if name in _KIND and (kind := _KIND[name].search(labels)):
                name = b"%b{%b}" % (name, kind[1])
            if b"rank=" in labels or b"pid=" in labels:
                labels = _SAME_ENGINE.sub(b"", labels)
            values = self._values.setdefault(name, {})
            values[labels] = max(number, values.get(labels, 0.0))

    def total(self, *names: bytes) -> float | None:
        """The sum over engines of the first of `names` that is there; None: none is."""
        for name in names:
            if values := self._values.get(name):
                return sum(values.values())
        return None

    def fraction(self, *names: bytes) -> float:
        """The mean over engines of the first of `names` that is there, at most 1; 0: none is."""
        for name in names:
            if values := self._values.get(name):
                return min(1.0, sum(values.values()) / len(values))
        return 0.0


def _vllm(samples: _Samples) -> EngineReport:
    queried = samples.total(b"prefix_cache_queries", b"gpu_prefix_cache_queries") or 0.0
    hit = min(queried, samples.total(b"prefix_cache_hits", b"gpu_prefix_cache_hits") or 0.0)
    computed = samples.total(b'prompt_tokens_by_source{source="local_compute"}')
    if computed is None:
        # Older engines. Not prompt - hit: a request that waits for room in the cache is looked up at each
        # step, and counted each time.
        prompt = samples.total(b"prompt_tokens") or 0.0
        computed = prompt * (1.0 - hit / queried) if queried else prompt
    return EngineReport(
        0,
        0,
        kv_usage=samples.fraction(b"kv_cache_usage_perc", b"gpu_cache_usage_perc"),
        computed_tokens=computed,
        prefills=samples.total(b"request_prefill_time_seconds_count") or 0.0,
        prefill_s=samples.total(b"request_prefill_time_seconds_sum") or 0.0,
        queried_tokens=queried,
        hit_tokens=hit,
    )


def _sglang(samples: _Samples) -> EngineReport:
    computed = samples.total(b'realtime_tokens{mode="prefill_compute"}')
    hit = samples.total(b'realtime_tokens{mode="prefill_cache"}')
    if computed is None and hit is None:
        # Counted when requests end, where the others are counted with each batch.
        queried = samples.total(b"prompt_tokens") or 0.0
        hit = min(queried, samples.total(b"cached_tokens") or 0.0)
        computed = queried - hit
    computed, hit = computed or 0.0, hit or 0.0
    return EngineReport(
        0,
        0,
        kv_usage=samples.fraction(b"token_usage"),
        computed_tokens=computed,
        prefills=samples.total(b'per_stage_req_latency_seconds_count{stage="prefill_forward"}') or 0.0,
        prefill_s=samples.total(b'per_stage_req_latency_seconds_sum{stage="prefill_forward"}') or 0.0,
        queried_tokens=computed + hit,
        hit_tokens=hit,
    )


def _trtllm(samples: _Samples) -> EngineReport:
    queried = samples.total(b"prompt_tokens") or 0.0
    hit = samples.total(b"prompt_cached_tokens")
    if hit is None:
        reused = samples.total(b"kv_cache_reused_blocks") or 0.0
        looked_up = reused + (samples.total(b"kv_cache_missed_blocks") or 0.0)
        hit = queried * reused / looked_up if looked_up else 0.0
    hit = min(queried, hit)
    return EngineReport(
        0,
        0,
        kv_usage=samples.fraction(b"kv_cache_utilization"),
        computed_tokens=queried - hit,
        prefills=samples.total(b"request_prefill_time_seconds_count") or 0.0,
        prefill_s=samples.total(b"request_prefill_time_seconds_sum") or 0.0,
        queried_tokens=queried,
        hit_tokens=hit,
    )


def _triton(samples: _Samples) -> EngineReport:
    return EngineReport(
        0, 0, kv_usage=samples.fraction(b'kv_cache_block_metrics{kv_cache_block_type="fraction"}')
    )


class _Dialect(NamedTuple):
    """How one engine writes its page."""

    engine: str
    wanted: re.Pattern[bytes]
    """Finds samples as name (without prefix and `_total`), labels, value."""
    running: bytes
    waiting: bytes
    read: Callable[[_Samples], EngineReport]
    """Everything but running and waiting."""
    remedy: str


_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)(?=[ \t\r\n]|\Z)"
"""A count or a fraction. What is below zero or NaN is none."""


def _dialect(
    engine: str,
    prefix: str,
    names: str,
    running: bytes,
    waiting: bytes,
    read: Callable[[_Samples], EngineReport],
    remedy: str = "",
) -> tuple[str, _Dialect]:
    # The prefix is a literal, which `re` looks for several times faster than for alternatives. Labels end at
    # the line's last brace, since their values may hold others.
    wanted = re.compile(
        rf"\n{prefix}[:_]({'|'.join(names.split())})(?:_total)?(?:\{{([^\n]*)\}})?[ \t]+{_NUMBER}".encode()
    )
    return prefix, _Dialect(engine, wanted, running, waiting, read, remedy)


_DIALECTS = dict(
    [
        _dialect(
            "vLLM",
            "vllm",
            "num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc"
            " prefix_cache_queries prefix_cache_hits gpu_prefix_cache_queries gpu_prefix_cache_hits"
            " prompt_tokens prompt_tokens_by_source"
            " request_prefill_time_seconds_sum request_prefill_time_seconds_count",
            b"num_requests_running",
            b"num_requests_waiting",
            _vllm,
            ": it may run with --disable-log-stats",
        ),
        _dialect(
            "SGLang",
            "sglang",
            "num_running_reqs num_queue_reqs token_usage realtime_tokens prompt_tokens cached_tokens"
            " per_stage_req_latency_seconds_sum per_stage_req_latency_seconds_count",
            b"num_running_reqs",
            b"num_queue_reqs",
            _sglang,
            ", which it does after its first batch",
        ),
        _dialect(
            "TensorRT-LLM",
            "trtllm",
            "num_requests_running num_requests_waiting kv_cache_utilization kv_cache_reused_blocks"
            " kv_cache_missed_blocks prompt_tokens prompt_cached_tokens"
            " request_prefill_time_seconds_sum request_prefill_time_seconds_count",
            b"num_requests_running",
            b"num_requests_waiting",
            _trtllm,
            ", which it does after its first batch if enable_iter_perf_stats and return_perf_metrics are on",
        ),
        _dialect(
            "Triton's TensorRT-LLM backend",
            "nv_trt_llm",
            "request_metrics kv_cache_block_metrics",
            b'request_metrics{request_type="scheduled"}',
            b'request_metrics{request_type="waiting"}',
            _triton,
        ),
    ]
)

_PREFIX = re.compile(rf"\n({'|'.join(_DIALECTS)})[:_]".encode())
"""Names begin with it and a colon, or an underscore where something on the way could not take colons."""
_KIND = {
    name.encode(): re.compile(rb'(?:^|,)(%s="[a-z_]+")' % label)
    for name, label in {
        "prompt_tokens_by_source": b"source",
        "realtime_tokens": b"mode",
        "per_stage_req_latency_seconds_sum": b"stage",
        "per_stage_req_latency_seconds_count": b"stage",
        "request_metrics": b"request_type",
        "kv_cache_block_metrics": b"kv_cache_block_type",
    }.items()
}
"""The label that tells one figure from another under the same name."""
_SAME_ENGINE = re.compile(rb'(?:^|,)(?:tp_rank|pp_rank|moe_ep_rank|pid)="[^"]*"')
"""Labels of several that report the same requests."""
_ONE_PRIORITY = re.compile(rb'(?:^|,)priority="[^"]')
"""SGLang repeats its counts for each priority, beside those of all, where the label is empty."""


def _count(value: float | None) -> int:
    return int(min(value or 0.0, MOST_REQUESTS + 1))


def _no_engine(page: bytes) -> Unreadable:
    start = page.lstrip()[:1]
    if not start:
        return Unreadable("the page is empty")
    if start in b"[{":
        return Unreadable(
            "the page is JSON; trtllm-serve has its metrics at another path:"
            " set engineMetrics: {path: /prometheus/metrics}"
        )
    return Unreadable(
        "the page names no metrics of vLLM, SGLang or TensorRT-LLM; is it another server's port or path?"
    )

"""A metrics page as large as a vLLM server's: its families, labels and buckets, with figures in them.

Names, labels and buckets are those of `vllm/v1/metrics/loggers.py`, and of prometheus-fastapi-instrumentator,
which vLLM serves beside them.
"""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

MODEL = "meta-llama/Llama-3.1-70B-Instruct"
MAX_MODEL_LEN = 131_072

_LABELS = ["model_name", "engine"]
_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_COUNTERS = (
    "prefix_cache_queries",
    "prefix_cache_hits",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "mm_cache_queries",
    "mm_cache_hits",
    "num_preemptions",
    "prompt_tokens",
    "prompt_tokens_cached",
    "prompt_tokens_recomputed",
    "generation_tokens",
)
_KINDS = {
    "prompt_tokens_by_source": ("source", ("local_compute", "local_cache_hit", "external_kv_transfer")),
    "request_success": ("finished_reason", ("stop", "length", "abort", "error", "repetition")),
}
_REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
_LENGTHS = tuple(
    step * 10**power for power in range(6) for step in (1, 2, 5) if step * 10**power <= MAX_MODEL_LEN
)
_HISTOGRAMS: dict[str, tuple[float, ...]] = {
    "request_prompt_tokens": _LENGTHS,
    "request_generation_tokens": _LENGTHS,
    "iteration_tokens_total": (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    "request_max_num_generation_tokens": _LENGTHS,
    "request_params_n": (1, 2, 5, 10, 20),
    "request_params_max_tokens": _LENGTHS,
    "time_to_first_token_seconds": (*_TTFT, 640, 2560),
    "inter_token_latency_seconds": _TOKEN,
    "request_time_per_output_token_seconds": _TOKEN,
    "e2e_request_latency_seconds": _REQUEST,
    "request_queue_time_seconds": _REQUEST,
    "request_inference_time_seconds": _REQUEST,
    "request_prefill_time_seconds": _REQUEST,
    "request_decode_time_seconds": _REQUEST,
    "request_prefill_kv_computed_tokens": _LENGTHS,
}


def registry(engines: int, running: int) -> CollectorRegistry:
    """The metrics of one server with so many engines in it (data parallel), each running so many requests."""
    made = CollectorRegistry()
    for process in (ProcessCollector, PlatformCollector, GCCollector):
        process(registry=made)
    values = [(MODEL, str(index)) for index in range(engines)]
    for name in _GAUGES:
        gauge = Gauge(
            f"vllm:{name}", "Number of requests in model execution batches.", _LABELS, registry=made
        )
        for value in values:
            gauge.labels(*value).set(running if "requests" in name else 0.5)
    for name in _COUNTERS:
        counter = Counter(f"vllm:{name}", "Number of prefill tokens processed.", _LABELS, registry=made)
        for value in values:
            counter.labels(*value).inc(123_456_789)
    for name, (label, kinds) in _KINDS.items():
        counter = Counter(
            f"vllm:{name}", "Number of prompt tokens by source.", [*_LABELS, label], registry=made
        )
        for value in values:
            for kind in kinds:
                counter.labels(*value, kind).inc(123_456)
    for name, bounds in _HISTOGRAMS.items():
        histogram = Histogram(
            f"vllm:{name}",
            "Histogram of time spent in PREFILL phase.",
            _LABELS,
            buckets=bounds,
            registry=made,
        )
        for value in values:
            for bound in bounds[::3]:
                histogram.labels(*value).observe(bound)
    _web(made)
    return made


def _web(made: CollectorRegistry) -> None:
    requests = Counter(
        "http_requests", "By method, status and handler.", ["method", "status", "handler"], registry=made
    )
    sizes = Counter("http_request_size_bytes", "Content length of requests.", ["handler"], registry=made)
    few = Histogram(
        "http_request_duration_seconds",
        "Latency.",
        ["method", "handler"],
        buckets=(0.1, 0.5, 1),
        registry=made,
    )
    many = Histogram("http_request_duration_highr_seconds", "Latency.", buckets=_REQUEST, registry=made)
    many.observe(1)
    for handler in ("/v1/chat/completions", "/v1/completions", "/v1/models"):
        sizes.labels(handler).inc(1e6)
        few.labels("POST", handler).observe(1)
        for status in ("2xx", "4xx", "5xx"):
            requests.labels("POST", status, handler).inc()

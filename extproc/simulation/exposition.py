"""The `/metrics` page of a simulated engine: vLLM's metric names (`vllm/v1/metrics/loggers.py`) in
Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from extproc.simulation.model import Engine

TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
"""Bounds in seconds of vLLM's `time_to_first_token_seconds`."""

REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
"""Bounds in seconds of vLLM's `request_prefill_time_seconds` and others."""


class Histogram:
    """Counts of observations by upper bound, with sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value` in the first bucket whose bound is not below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> list[str]:
        """Return the sample lines of this histogram."""
        totals = list(accumulate(self.counts))
        bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return [
            *(f'{name}_bucket{{{labels},le="{b}"}} {t}' for b, t in zip(bounds, totals, strict=True)),
            f"{name}_sum{{{labels}}} {self.sum:.6f}",
            f"{name}_count{{{labels}}} {totals[-1]}",
        ]


def render(
    engine: Engine, now: float, model: str, ttft: Histogram, prefill: Histogram, lag: Histogram
) -> str:
    """Return the page for `engine` at `now` (its time, seconds).

    `prefill`: seconds from leaving the queue to the first token, observed when the request has finished, as
    vLLM does. `lag`: seconds between an event's time and its delivery.
    """
    counters = engine.counters
    prefill_busy, busy = engine.busy_until(now)
    labels = f'model_name="{model}",engine="0"'
    lines = ["# This engine is a simulation: no model runs here."]

    def sample(kind: str, name: str, text: str, value: float, extra: str = "") -> None:
        family = name.removesuffix("_total") if kind == "counter" else name
        lines.extend((f"# HELP {family} {text}", f"# TYPE {family} {kind}"))
        lines.append(f"{name}{{{labels}{extra}}} {value!r}")

    sample("gauge", "vllm:num_requests_running", "Requests in the batch.", engine.running)
    sample("gauge", "vllm:num_requests_waiting", "Requests in the queue.", engine.waiting)
    sample("gauge", "vllm:kv_cache_usage_perc", "Fraction of KV cache blocks in use.", engine.kv_usage)
    sample("gauge", "vllm:gpu_cache_usage_perc", "The same, under its older name.", engine.kv_usage)
    sample("counter", "vllm:prefix_cache_queries_total", "Tokens looked up.", counters.queried_tokens)
    sample("counter", "vllm:prefix_cache_hits_total", "Tokens found.", counters.hit_tokens)
    sample("counter", "vllm:prompt_tokens_total", "Prompt tokens prefilled.", counters.prompt_tokens)
    sample("counter", "vllm:prompt_tokens_cached_total", "Of those, cached.", counters.cached_tokens)
    by_source = "vllm:prompt_tokens_by_source_total"
    computed = counters.prompt_tokens - counters.cached_tokens
    sample("counter", by_source, "Prompt tokens by source.", computed, ',source="local_compute"')
    lines.append(f'{by_source}{{{labels},source="local_cache_hit"}} {counters.cached_tokens!r}')
    sample("counter", "vllm:generation_tokens_total", "Tokens generated.", counters.generated_tokens)
    sample("counter", "vllm:num_preemptions_total", "Preemptions; the model has none.", 0)
    sample("counter", "vllm:request_success_total", "Requests finished.", counters.finished)
    size = f',block_size="{engine.spec.block_tokens}",num_gpu_blocks="{engine.spec.blocks}"'
    sample("gauge", "vllm:cache_config_info", "Size of the KV cache.", 1, size)
    for name, text, histogram in (
        ("vllm:time_to_first_token_seconds", "Seconds from arrival to first token.", ttft),
        ("vllm:request_prefill_time_seconds", "Seconds from scheduled to first token.", prefill),
        ("simulation:event_lag_seconds", "Seconds by which this process delivers events late.", lag),
    ):
        lines.extend((f"# HELP {name} {text}", f"# TYPE {name} histogram"))
        lines.extend(histogram.lines(name, labels))
    sample(
        "counter", "simulation:requests_cancelled_total", "Requests whose client left.", counters.cancelled
    )
    sample(
        "counter", "simulation:prefill_busy_seconds_total", "Seconds in which a prefill ran.", prefill_busy
    )
    sample("counter", "simulation:busy_seconds_total", "Seconds in which anything ran.", busy)
    sample("counter", "simulation:clock_seconds_total", "Seconds of engine time so far.", now)
    return "\n".join(lines) + "\n"

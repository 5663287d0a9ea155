"""Figures of one run. Times in milliseconds where the name ends in `_ms`, else seconds; shares of 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from extproc.replay.run import Outcome

WINDOW_S = 60.0
"""Width of the windows in which the balance of work is taken."""
COLD_S = 60.0
"""An engine that joined less than this ago is cold."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What one policy did with one trace."""

    requests: int
    refused: int
    hit_rate: float
    """Prompt tokens found in a cache / prompt tokens of requests that were served."""
    ttft_ms: dict[str, float]
    """`mean`, `p50`, `p95`, `p99`."""
    total_ms: dict[str, float]
    """Until the last token; same names."""
    max_over_mean: float
    """Requests of the busiest engine over the mean; engines that were there all the time."""
    work_max_over_mean: float
    """The same of uncached tokens in windows of `WINDOW_S`: mean over the windows, weighted by work."""
    busy: float
    """Share of engine time in which prefills ran."""
    cold: int
    """Requests on an engine that joined less than `COLD_S` before."""
    share: dict[str, float]
    """Share of requests by engine."""


def summary(outcome: Outcome) -> Summary:
    """The figures of a run."""
    served = outcome.engine >= 0
    prompt = int(outcome.prompt[served].sum())
    count = len(outcome.engines)
    by_engine = np.bincount(outcome.engine[served], minlength=count)
    end = float(outcome.at[-1]) if len(outcome.at) else 0.0
    present = sum(min(engine.left, end) - engine.joined for engine in outcome.engines if engine.joined < end)
    total = max(1, int(by_engine.sum()))
    return Summary(
        len(outcome.at),
        outcome.refused,
        float(outcome.cached[served].sum()) / max(1, prompt),
        _times(outcome.ttft[served]),
        _times(outcome.total[served]),
        _uneven(by_engine[_throughout(outcome)]),
        work_balance(outcome),
        outcome.busy_s / present if present > 0 else 0.0,
        cold_requests(outcome),
        {engine.name: float(by_engine[at] / total) for at, engine in enumerate(outcome.engines)},
    )


def _times(seconds: NDArray[np.float64]) -> dict[str, float]:
    if not len(seconds):
        return {}
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99)) * 1000
    return {"mean": float(seconds.mean() * 1000), "p50": float(p50), "p95": float(p95), "p99": float(p99)}


def _throughout(outcome: Outcome) -> NDArray[np.bool_]:
    there = np.array([e.joined == 0.0 and e.left == float("inf") for e in outcome.engines], dtype=np.bool_)
    return there if there.any() else ~there


def _uneven(counts: NDArray[np.int64]) -> float:
    return float(counts.max() / counts.mean()) if len(counts) and counts.any() else 1.0


def work_balance(outcome: Outcome) -> float:
    """Uncached tokens of the busiest engine over the mean, per window, weighted by the windows' work."""
    served = outcome.engine >= 0
    there = _throughout(outcome)
    window = (outcome.at[served] // WINDOW_S).astype(np.int64)
    if not len(window):
        return 1.0
    work = np.zeros((int(window.max()) + 1, len(outcome.engines)))
    np.add.at(work, (window, outcome.engine[served]), (outcome.prompt - outcome.cached)[served])
    work = work[:, there]
    return float(work.max(axis=1).sum() / max(1.0, work.mean(axis=1).sum()))


def cold_requests(outcome: Outcome) -> int:
    """Requests that went to an engine within `COLD_S` of its joining."""
    count = 0
    for index, engine in enumerate(outcome.engines):
        if engine.joined > 0:
            late = (outcome.at >= engine.joined) & (outcome.at < engine.joined + COLD_S)
            count += int(np.count_nonzero(late & (outcome.engine == index)))
    return count


def over_time(outcome: Outcome, windows: int = 60) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Middle (seconds) and hit rate of equal windows; NaN where no request was served."""
    end = float(outcome.at[-1]) if len(outcome.at) else 0.0
    edges = np.linspace(0.0, max(end, 1e-9), windows + 1)
    served = outcome.engine >= 0
    prompt, _ = np.histogram(outcome.at[served], edges, weights=outcome.prompt[served])
    cached, _ = np.histogram(outcome.at[served], edges, weights=outcome.cached[served])
    rate = np.full(windows, np.nan)
    np.divide(cached, prompt, out=rate, where=prompt > 0)
    return (edges[:-1] + edges[1:]) / 2, rate

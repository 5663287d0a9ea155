"""Figures of one run. Times in milliseconds where the name ends in `_ms`, else seconds; shares of 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    cold_hit_rate: float
    """Hit rate of these; 0 if there are none."""
    share: dict[str, float]
    """Share of requests by engine."""


def summary(outcome: Outcome) -> Summary:
    """The figures of a run."""
    served = outcome.engine >= 0
    count = len(outcome.engines)
    by_engine = np.bincount(outcome.engine[served], minlength=count)
    present = _engine_seconds(outcome)
    total = max(1, int(by_engine.sum()))
    cold = on_cold_engine(outcome)
    return Summary(
        len(outcome.at),
        outcome.refused,
        _hit_rate(outcome, served),
        _times(outcome.ttft[served]),
        _times(outcome.total[served]),
        _uneven(by_engine[_throughout(outcome)]),
        work_balance(outcome),
        outcome.busy_s / present if present > 0 else 0.0,
        int(np.count_nonzero(cold)),
        _hit_rate(outcome, cold),
        {engine.name: float(by_engine[at] / total) for at, engine in enumerate(outcome.engines)},
    )


def _engine_seconds(outcome: Outcome) -> float:
    """How long engines were there, all together: until they left or the last request ended, and until they
    had done what they had."""
    served = outcome.engine >= 0
    if not served.any():
        return 0.0
    ended = np.zeros(len(outcome.engines))
    np.maximum.at(ended, outcome.engine[served], (outcome.at + outcome.total)[served])
    last = float(ended.max())
    return sum(
        max(0.0, min(engine.left, last) - engine.joined, own - engine.joined)
        for engine, own in zip(outcome.engines, ended.tolist(), strict=True)
    )


def _hit_rate(outcome: Outcome, chosen: NDArray[np.bool_]) -> float:
    return float(outcome.cached[chosen].sum() / max(1, outcome.prompt[chosen].sum()))


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


def on_cold_engine(outcome: Outcome) -> NDArray[np.bool_]:
    """For each request, whether it went to an engine within `COLD_S` of its joining."""
    if not len(outcome.engines):
        return np.zeros(len(outcome.at), dtype=np.bool_)
    joined = np.array([engine.joined for engine in outcome.engines])[outcome.engine]
    cold: NDArray[np.bool_] = (outcome.engine >= 0) & (joined > 0) & (outcome.at < joined + COLD_S)
    return cold


@dataclass(frozen=True, slots=True)
class OverTime:
    """Shares in equal windows; NaN where no request was served."""

    at: NDArray[np.float64]
    """Middle of each window, seconds."""
    hit_rate: NDArray[np.float64]
    on_joiners: NDArray[np.float64]
    """Share of requests that went to engines that joined during the run."""


def over_time(outcome: Outcome, windows: int = 60) -> OverTime:
    """What changed while the trace ran."""
    end = float(outcome.at[-1]) if len(outcome.at) else 0.0
    edges = np.linspace(0.0, max(end, 1e-9), windows + 1)
    served = outcome.engine >= 0
    at, engine = outcome.at[served], outcome.engine[served]
    joiner = np.array([one.joined > 0.0 for one in outcome.engines], dtype=np.bool_)[engine]

    def share(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
        parts, _ = np.histogram(at, edges, weights=part)
        wholes, _ = np.histogram(at, edges, weights=whole)
        found = np.full(windows, np.nan)
        np.divide(parts, wholes, out=found, where=wholes > 0)
        return found

    return OverTime(
        (edges[:-1] + edges[1:]) / 2,
        share(outcome.cached[served], outcome.prompt[served]),
        share(joiner.astype(np.int64), np.ones(len(at), dtype=np.int64)),
    )

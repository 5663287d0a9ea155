"""What the measured starts say: medians, a line through them, and where it leads."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from bench.coldstart.pods import Step

CLEAR = 2.0
"""Standard errors by which a slope must be above 0 to be extrapolated."""


@dataclass(frozen=True)
class Sample:
    """One start of a pod. Bytes, bytes per second, seconds."""

    warm: bool
    rate: float
    """To which source and registry were throttled, each."""
    model_bytes: int
    seconds: float
    """To Ready, from when it was asked for."""
    spans: Mapping[Step, float]
    source_bytes: int
    """That went out of the source meanwhile."""
    source_rate: float
    registry_bytes: int
    registry_rate: float
    loading_rate: float
    """At which the engine read the model."""
    busy: float
    """Part of the machine's processors that was not idle meanwhile; the bench's own share is in it."""

    def __str__(self) -> str:
        node = "prepared" if self.warm else "nothing "
        return f"{self.model_bytes / 1e9:.2g} GB, {self.rate / 1e6:.0f} MB/s, {node}: {self.seconds:6.1f} s"

    def json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "spans": {step.value: seconds for step, seconds in self.spans.items()}}


class Spread(NamedTuple):
    """Median and extremes, and of how many."""

    median: float
    least: float
    most: float
    number: int


def spread(values: Iterable[float]) -> Spread:
    """Of at least one value."""
    found = sorted(values)
    return Spread(statistics.median(found), found[0], found[-1], len(found))


class Line(NamedTuple):
    """Seconds over bytes by least squares.

    `deviation` is the standard deviation of what it was fitted to, None with fewer than three points; `mean`
    and `scatter` are the mean of their bytes, and the sum of squares around it.
    """

    intercept: float
    """s"""
    slope: float
    """s per byte"""
    deviation: float | None
    number: int
    mean: float
    scatter: float

    def at(self, size: float) -> float:
        """Seconds at so many bytes."""
        return self.intercept + self.slope * size

    @property
    def shown(self) -> bool:
        """Whether the points show that seconds grow with bytes: by `CLEAR`, if there are enough of them."""
        if self.deviation is None:
            return self.slope > 0
        return self.slope > CLEAR * self.deviation / math.sqrt(self.scatter)

    def error(self, size: float) -> float | None:
        """Standard error of `at`, s; None where the points do not say. It holds if the line goes on as it
        began, which nobody has measured."""
        if self.deviation is None:
            return None
        return self.deviation * math.sqrt(1 / self.number + (size - self.mean) ** 2 / self.scatter)


def line(points: Sequence[tuple[float, float]]) -> Line:
    """Through points (bytes, seconds) of at least two sizes.

    Raises:
        ValueError: they have one size only.
    """
    count = len(points)
    mean = statistics.fmean(size for size, _ in points)
    scatter = math.fsum((size - mean) ** 2 for size, _ in points)
    if not scatter:
        raise ValueError("points of one size make no line: measure two")
    centre = statistics.fmean(seconds for _, seconds in points)
    slope = math.fsum((size - mean) * (seconds - centre) for size, seconds in points) / scatter
    intercept = centre - slope * mean
    left = math.fsum((seconds - intercept - slope * size) ** 2 for size, seconds in points)
    deviation = math.sqrt(left / (count - 2)) if count > 2 else None
    return Line(intercept, slope, deviation, count, mean, scatter)


def lines(samples: Sequence[Sample]) -> dict[float | None, Line]:
    """That of the cold starts at each rate; under None that of the warm ones, which ask no source."""
    groups: dict[float | None, list[tuple[float, float]]] = {}
    for one in samples:
        groups.setdefault(None if one.warm else one.rate, []).append((one.model_bytes, one.seconds))
    return {rate: line(points) for rate, points in groups.items()}

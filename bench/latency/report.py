"""From samples to figures: medians over rounds, ratios, growth per byte, aims; as tables, JSON, Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from rich.table import Table

from bench.latency.measure import ALONE, BARE, FLOOR, ROUTER, Sample, Shape

TITLES = {ALONE: "Envoy alone", FLOOR: "Go floor", BARE: "bare handler", ROUTER: "warmroute"}

RATIO_AIM = 1.4
"""CPU and added median latency: at most this many times the bare handler's."""
GROWTH_AIM = 1.1
"""Growth per body byte: that of the bare handler, give or take what two runs of one program differ by."""


class Figures(NamedTuple):
    """One target under one shape, in microseconds; None where there is nothing to add to or compare with."""

    target: str
    size: int
    connections: int
    requests_per_s: float
    p50_us: float
    p90_us: float
    p99_us: float
    added_p50_us: float | None
    added_p99_us: float | None
    cpu_us: float | None
    envoy_cpu_us: float
    cpu_to_bare: float | None
    added_p50_to_bare: float | None
    cpu_to_floor: float | None
    added_p50_to_floor: float | None


class Growth(NamedTuple):
    """What each further KB (1024 bytes) of body costs, between the smallest and the largest size measured."""

    target: str
    connections: int
    cpu_us_per_kb: float
    added_p50_us_per_kb: float
    cpu_to_bare: float | None
    added_p50_to_bare: float | None


class Aim(NamedTuple):
    """What was aimed at, and the figure that is furthest from it."""

    name: str
    limit: float
    worst: float
    where: str
    met: bool

    def __str__(self) -> str:
        verdict = "met" if self.met else "NOT MET"
        return (
            f"{self.name}: {verdict}, {self.worst:.2f} x bare at worst ({self.where}), aim {self.limit:.1f} x"
        )


class Report(NamedTuple):
    """All figures of one run."""

    figures: list[Figures]
    growth: list[Growth]
    aims: list[Aim]


def report(samples: Sequence[Sample]) -> Report:
    """The figures of all rounds.

    A difference or ratio is taken within each round, then the median over rounds: what slows the machine for
    a while falls on both of its sides.
    """
    rounds = _Rounds(samples)
    figures = [_figures(rounds, target, shape) for shape in rounds.shapes for target in rounds.targets]
    growth = [
        _growth(rounds, target, connections)
        for connections in sorted({shape.connections for shape in rounds.shapes})
        for target in rounds.targets
        if target != ALONE and len(rounds.sizes) > 1
    ]
    return Report(figures, growth, _aims(figures, growth))


class _Rounds:
    """The samples by target, shape and round."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = {
            (sample.target, Shape(sample.size, sample.connections), sample.round): sample
            for sample in samples
        }
        # In the order of their names here, not of a round, which turns.
        self.targets = [target for target in TITLES if any(sample.target == target for sample in samples)]
        self.shapes = sorted({Shape(sample.size, sample.connections) for sample in samples})
        self.sizes = sorted({shape.size for shape in self.shapes})
        self.turns = sorted({sample.round for sample in samples})

    def median(self, value: Callable[[int], float]) -> float:
        """The median of what `value` makes of each round."""
        return median(value(turn) for turn in self.turns)

    def at(self, target: str, shape: Shape, turn: int) -> Sample:
        return self._samples[target, shape, turn]

    def added(self, target: str, shape: Shape, turn: int) -> float:
        """Median latency above Envoy alone's, in microseconds."""
        return self.at(target, shape, turn).p50_us - self.at(ALONE, shape, turn).p50_us

    def cpu(self, target: str, shape: Shape, turn: int) -> float:
        return self.at(target, shape, turn).cpu_us


def _figures(rounds: _Rounds, target: str, shape: Shape) -> Figures:
    def of(name: str) -> float:
        return rounds.median(lambda turn: getattr(rounds.at(target, shape, turn), name))

    def ratio(value: Callable[[str, Shape, int], float], other: str) -> float | None:
        if target in (ALONE, other) or other not in rounds.targets:
            return None
        return rounds.median(lambda turn: value(target, shape, turn) / value(other, shape, turn))

    def added_p99(turn: int) -> float:
        return rounds.at(target, shape, turn).p99_us - rounds.at(ALONE, shape, turn).p99_us

    alone = target == ALONE
    return Figures(
        target=target,
        size=shape.size,
        connections=shape.connections,
        requests_per_s=of("requests_per_s"),
        p50_us=of("p50_us"),
        p90_us=of("p90_us"),
        p99_us=of("p99_us"),
        added_p50_us=None if alone else rounds.median(lambda turn: rounds.added(target, shape, turn)),
        added_p99_us=None if alone else rounds.median(added_p99),
        cpu_us=None if alone else of("cpu_us"),
        envoy_cpu_us=of("envoy_cpu_us"),
        cpu_to_bare=ratio(rounds.cpu, BARE),
        added_p50_to_bare=ratio(rounds.added, BARE),
        cpu_to_floor=ratio(rounds.cpu, FLOOR),
        added_p50_to_floor=ratio(rounds.added, FLOOR),
    )


def _growth(rounds: _Rounds, target: str, connections: int) -> Growth:
    small, large = Shape(rounds.sizes[0], connections), Shape(rounds.sizes[-1], connections)
    kilobytes = (large.size - small.size) / 1024

    def slope(value: Callable[[str, Shape, int], float], of: str) -> float:
        return rounds.median(lambda turn: (value(of, large, turn) - value(of, small, turn)) / kilobytes)

    def ratio(value: Callable[[str, Shape, int], float]) -> float | None:
        # Of medians: a slope is a difference of noisy figures, and the ratio of two slopes noisier still.
        if target == BARE or BARE not in rounds.targets:
            return None
        return slope(value, target) / slope(value, BARE)

    return Growth(
        target,
        connections,
        slope(rounds.cpu, target),
        slope(rounds.added, target),
        ratio(rounds.cpu),
        ratio(rounds.added),
    )


def _aims(figures: Sequence[Figures], growth: Sequence[Growth]) -> list[Aim]:
    here = [row for row in figures if row.target == ROUTER]
    grown = [row for row in growth if row.target == ROUTER]
    candidates = [
        (
            "CPU per request",
            RATIO_AIM,
            [(row.cpu_to_bare, _where(row.connections, row.size)) for row in here],
        ),
        (
            "Added p50",
            RATIO_AIM,
            [(row.added_p50_to_bare, _where(row.connections, row.size)) for row in here],
        ),
        (
            "CPU growth per body byte",
            GROWTH_AIM,
            [(row.cpu_to_bare, _where(row.connections)) for row in grown],
        ),
        (
            "Added p50 growth per body byte",
            GROWTH_AIM,
            [(row.added_p50_to_bare, _where(row.connections)) for row in grown],
        ),
    ]
    aims = []
    for name, limit, found in candidates:
        known = [(ratio, where) for ratio, where in found if ratio is not None]
        if known:
            worst, where = max(known)
            aims.append(Aim(name, limit, worst, where, worst <= limit))
    return aims


def _where(connections: int, size: int | None = None) -> str:
    words = f"{connections} connection{'s' if connections > 1 else ''}"
    return words if size is None else f"{size >> 10} KB, {words}"


# --- for people ---

NOTE = "Per request, medians over rounds. One shared machine: compare rows of a run, not runs."

Cells = tuple[str, list[str], list[list[str]]]
"""A title, the columns' headings (each word on a line of its own in a terminal), and rows of text."""


def tables(found: Report) -> list[Table]:
    """The figures as rich tables."""
    shown = []
    for title, headings, rows in _texts(found):
        table = Table(title=title, title_justify="left", padding=0, pad_edge=False)
        for heading in headings:
            words = heading.replace(" ", "\n")
            table.add_column(words, justify="left" if heading == "target" else "right", no_wrap=True)
        for index, row in enumerate(rows):
            last_of_group = index + 1 == len(rows) or _shape(rows[index + 1]) != _shape(row)
            style = "bold" if TITLES[ROUTER] in row else None
            table.add_row(*row, end_section=last_of_group, style=style)
        shown.append(table)
    return shown


def markdown(found: Report, exchange: str, rounds: int, seconds: float) -> str:
    """The figures as a short Markdown page."""
    lines = ["# Latency and CPU of the router beside Envoy alone, a Go server and a bare handler", ""]
    lines += [f"Exchange: {exchange}; {rounds} rounds of {seconds:g} s per cell. {NOTE}", ""]
    for title, headings, rows in _texts(found):
        lines += [f"## {title}", "", _line(headings), _line(["---:"] * len(headings))]
        lines += [*map(_line, rows), ""]
    return "\n".join([*lines, "## Aims", "", *(f"- {aim}" for aim in found.aims), ""])


def as_json(found: Report) -> dict[str, Any]:
    """The figures as JSON holds them."""
    return {
        "figures": [row._asdict() for row in found.figures],
        "growth": [row._asdict() for row in found.growth],
        "aims": [aim._asdict() for aim in found.aims],
    }


def _texts(found: Report) -> list[Cells]:
    latency = [
        [
            f"{row.size >> 10} KB",
            str(row.connections),
            TITLES[row.target],
            f"{row.requests_per_s:,.0f}",
            _ms(row.p50_us),
            _ms(row.p99_us),
            _ms(row.added_p50_us),
            _ms(row.added_p99_us),
            _times(row.added_p50_to_bare),
            _times(row.added_p50_to_floor),
        ]
        for row in found.figures
    ]
    cpu = [
        [
            f"{row.size >> 10} KB",
            str(row.connections),
            TITLES[row.target],
            _ms(row.cpu_us),
            _times(row.cpu_to_bare),
            _times(row.cpu_to_floor),
            _ms(row.envoy_cpu_us),
        ]
        for row in found.figures
    ]
    growth = [
        [
            str(row.connections),
            TITLES[row.target],
            f"{row.cpu_us_per_kb:.2f}",
            _times(row.cpu_to_bare),
            f"{row.added_p50_us_per_kb:.2f}",
            _times(row.added_p50_to_bare),
        ]
        for row in found.growth
    ]
    latency_columns = ["req/s", "p50", "p99", "added p50", "added p99", "p50 /bare", "p50 /floor"]
    cpu_columns = ["CPU", "CPU /bare", "CPU /floor", "Envoy's CPU"]
    growth_columns = ["CPU", "CPU /bare", "added p50", "p50 /bare"]
    shape = ["body", "conns", "target"]
    return [
        ("Latency (ms); ratios of the added p50", [*shape, *latency_columns], latency),
        ("CPU of each processor, and of Envoy (ms)", [*shape, *cpu_columns], cpu),
        ("Growth from the smallest body to the largest (us per KB)", [*shape[1:], *growth_columns], growth),
    ]


def _shape(row: list[str]) -> list[str]:
    """What stands before the target."""
    return row[: next(index for index, cell in enumerate(row) if cell in TITLES.values())]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ms(microseconds: float | None) -> str:
    return "" if microseconds is None else f"{microseconds / 1000:.2f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f} x"

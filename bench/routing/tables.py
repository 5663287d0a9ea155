"""What `build/bench/routing.json` says, as the tables of docs/routing.md.

`python -m bench.routing.tables` writes them between the marks in that page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

import click
import orjson

from bench.routing.policies import IDEAL, OURS

PAGE = Path("docs/routing.md")
BEGIN, END = "<!-- bench-routing: begin -->", "<!-- bench-routing: end -->"
FLEETS = {"one replica": (1, False), "8 replicas, picks shared": (8, True), "8 replicas, alone": (8, False)}
HIT_BAR, WORST_BAR = 0.95, 0.90
SHOWN = {"engines": 7, "capacity": "ample", "utilisation": 0.85}
"""Rows of the table of absolute figures."""

Found = dict[str, Any]


class Ratio(NamedTuple):
    """Figures on one row over the best peer's there; another peer may be best in each."""

    row: Found
    hit: float
    mean: float
    p95: float


def ratios(found: Sequence[Found], replicas: int, shared: bool, policy: str = OURS) -> list[Ratio]:
    """`policy` on every row of such a fleet. Peers have no shared picks: theirs are the rows without."""
    peers: dict[tuple[Any, ...], list[Found]] = defaultdict(list)
    for one in found:
        if one["policy"] not in (OURS, IDEAL):
            peers[_row(one)].append(one)
    made = []
    for one in found:
        if one["policy"] == policy and (one["R"], one["shared_picks"]) == (replicas, shared):
            others = peers[_row(one)]
            if others:
                made.append(
                    Ratio(
                        one,
                        one["hit_rate"] / max(other["hit_rate"] for other in others),
                        one["ttft_ms"]["mean"] / min(other["ttft_ms"]["mean"] for other in others),
                        one["ttft_ms"]["p95"] / min(other["ttft_ms"]["p95"] for other in others),
                    )
                )
    return made


def _row(one: Found) -> tuple[Any, ...]:
    return tuple(one[name] for name in ("trace", "engines", "capacity", "R", "utilisation", "half"))


def _geometric(values: Iterable[float]) -> float:
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for line in lines:
        yield "| " + " | ".join(line) + " |"


def summary(found: Sequence[Found]) -> Iterator[str]:
    """Per fleet and trace, our figures over the best peer's."""

    def lines() -> Iterator[Sequence[str]]:
        for fleet, (replicas, shared) in FLEETS.items():
            made = ratios(found, replicas, shared)
            bound = ratios(found, replicas, shared, IDEAL)
            for trace in dict.fromkeys(ratio.row["trace"] for ratio in made):
                of = [ratio for ratio in made if ratio.row["trace"] == trace]
                possible = [ratio for ratio in bound if ratio.row["trace"] == trace]
                yield (
                    fleet,
                    trace,
                    str(len(of)),
                    f"{min(r.hit for r in of):.2f} / {sum(r.hit for r in of) / len(of):.3f}",
                    f"{_geometric(r.mean for r in of):.2f} / {max(r.mean for r in of):.2f}",
                    f"{_geometric(r.p95 for r in of):.2f} / {max(r.p95 for r in of):.2f}",
                    f"{_geometric(r.mean for r in possible):.2f}" if possible else "",
                    f"{_mean(r.row['max_over_mean'] for r in of):.2f}",
                    f"{_mean(r.row['work_max_over_mean'] for r in of):.2f}",
                )

    yield from _table(
        (
            "fleet", "trace", "rows", "hit rate: least / mean", "mean TTFT: mean / worst",
            "p95 TTFT: mean / worst", "ideal's mean TTFT", "requests max/mean", "work max/mean",
        ),
        lines(),
    )  # fmt: skip


def averages(found: Sequence[Found]) -> Iterator[str]:
    """Hit rate of every policy, averaged over each trace's rows."""
    policies = list(dict.fromkeys(one["policy"] for one in found if one["policy"] != IDEAL))
    traces = list(dict.fromkeys(one["trace"] for one in found))

    def rate(policy: str, trace: str, replicas: int) -> str:
        shared = policy == OURS and replicas > 1
        of = [
            one["hit_rate"]
            for one in found
            if (one["policy"], one["trace"], one["R"], one["shared_picks"])
            == (policy, trace, replicas, shared)
        ]
        return f"{_mean(of):.3f}" if of else "-"

    yield from _table(
        ("policy", *(f"{trace}, R={replicas}" for trace in traces for replicas in (1, 8))),
        (
            (
                f"{OURS} (R=8: picks shared)" if policy == OURS else policy,
                *(rate(policy, trace, replicas) for trace in traces for replicas in (1, 8)),
            )
            for policy in policies
        ),
    )


def shown(found: Sequence[Found]) -> Iterator[str]:
    """Absolute figures of every policy on the rows of `SHOWN`."""

    def lines() -> Iterator[Sequence[str]]:
        for one in found:
            if one["policy"] != IDEAL and all(one[name] == value for name, value in SHOWN.items()):
                fleet = f"{one['R']}, shared" if one["shared_picks"] else str(one["R"])
                times = one["ttft_ms"]
                yield (
                    one["trace"],
                    fleet,
                    one["policy"],
                    f"{one['hit_rate']:.3f}",
                    f"{times['mean']:,.0f}",
                    f"{times['p95']:,.0f}",
                    f"{one['max_over_mean']:.2f}",
                    f"{one['moved']:.3f}",
                )

    order = sorted(
        lines(), key=lambda line: (line[0], line[1].split(",")[0], float(line[4].replace(",", "")))
    )
    yield from _table(
        ("trace", "R", "policy", "hit rate", "TTFT mean, ms", "p95, ms", "requests max/mean", "moved"), order
    )


def missed(found: Sequence[Found]) -> Iterator[str]:
    """Rows in which something is worse than the bar."""
    for fleet, (replicas, shared) in FLEETS.items():
        made = ratios(found, replicas, shared)
        bad = [ratio for ratio in made if ratio.hit < HIT_BAR or ratio.mean > 1.0 or ratio.p95 > 1.0]
        yield f"- {fleet}: {len(bad)} of {len(made)} rows"
        if shared or replicas == 1:
            for ratio in bad:
                row = ratio.row
                where = f"{row['trace']}, {row['engines']} engines, {row['capacity']}"
                yield (
                    f"  - {where}, {row['utilisation']:.0%}: "
                    f"hit rate {ratio.hit:.2f}, mean {ratio.mean:.2f}, p95 {ratio.p95:.2f}"
                )


def remap(found: Sequence[Found]) -> Iterator[str]:
    """Prefixes moved by an engine that leaves, over the ideal."""

    def lines() -> Iterator[Sequence[str]]:
        for policy in dict.fromkeys(one["policy"] for one in found if one["policy"] != IDEAL):
            of = [one for one in found if one["policy"] == policy and (policy != OURS or one["R"] == 1)]
            over = [one["moved"] / one["moved_ideal"] for one in of]
            yield policy, f"{_mean(over):.2f}", f"{max(over):.2f}"

    yield from _table(("policy", "moved / ideal, mean", "worst"), lines())


def _mean(values: Iterable[float]) -> float:
    every = list(values)
    return sum(every) / len(every) if every else float("nan")


SECTIONS: dict[str, Callable[[Sequence[Found]], Iterator[str]]] = {
    "Over the best peer of each row": summary,
    "Rows in which a peer is better": missed,
    "Hit rate, mean over each trace's rows": averages,
    "Prefixes that move when one engine leaves": remap,
    "Seven engines, ample cache, 85 %": shown,
}


def page(text: str, found: Sequence[Found]) -> str:
    """The page with its tables made anew. ValueError if the marks are missing."""
    if BEGIN not in text or END not in text:
        raise ValueError(f"{PAGE} lacks {BEGIN} or {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    parts = [f"### {title}\n\n" + "\n".join(make(found)) for title, make in SECTIONS.items()]
    return before + BEGIN + "\n\n" + "\n\n".join(parts) + "\n\n" + END + after


@click.command()
@click.argument(
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=Path("build/bench/routing.json"),
)
def main(file: Path) -> None:
    """Write the tables of docs/routing.md from FILE (build/bench/routing.json)."""
    found = [one for one in orjson.loads(file.read_bytes())["rows"] if one["half"] == "second"]
    PAGE.write_text(page(PAGE.read_text(), found))
    click.echo(f"{PAGE}: {len(found)} runs")


if __name__ == "__main__":
    main()

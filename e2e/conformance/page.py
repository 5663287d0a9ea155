"""The part of docs/conformance.md that a run writes, between two marks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from e2e.cluster import versions
from e2e.conformance.suite import Result, Run
from e2e.conformance.weighted import Told

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
REPORTS = PAGE.with_suffix("")
BEGIN = "<!-- written by `make e2e-conformance` -->\n"
END = "<!-- end of what is written -->\n"

_WORDS = {"PASS": "passed", "FAIL": "**failed**", "SKIP": "skipped"}


def keep(picker: str, run: Run) -> None:
    """Write the suite's own report beside the page."""
    REPORTS.mkdir(exist_ok=True)
    (REPORTS / f"{picker}.yaml").write_text(run.report)


def write(runs: Mapping[str, Run], seen: Told, mended: Result | None) -> None:
    """Write what came of these runs (by the picker's name) into the page, and leave the rest of it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + text(runs, seen, mended) + END + after)


def text(runs: Mapping[str, Run], seen: Told, mended: Result | None) -> str:
    """The generated part, in Markdown.

    `seen` is what Envoy is told of two weighted pools, `mended` how their test ended with a picker for each.
    """
    pickers = list(runs)
    names = sorted({result.name for run in runs.values() for result in run.results})
    by_name = {picker: {one.name: one for one in run.results} for picker, run in runs.items()}
    lines = [
        f"| test | {' | '.join(f'with `{picker}`' for picker in pickers)} |",
        "|---" * (len(pickers) + 1) + "|",
        *(
            f"| {name} | {' | '.join(_cell(by_name[picker].get(name)) for picker in pickers)} |"
            for name in names
        ),
        f"| passed | {' | '.join(_passed(run) for run in runs.values())} |",
        "",
        "What Envoy is told of the two weighted pools:",
        "",
        *(f"- weight {weight}: `{name}`" for name, weight in seen.clusters),
        *(f"- picker that is asked: `{name}`" for name in seen.pickers),
        "",
    ]
    if mended is not None:
        lines += [
            f"{mended.name} with `extproc`, where an EnvoyFilter",
            f"gives each of the two clusters the picker of its own pool: {_cell(mended)}.",
            "",
        ]
    lines += [
        "| made of | version |",
        "|---|---|",
        f"| Inference Extension: suite, kinds, reference picker | {versions.INFERENCE_EXTENSION} |",
        f"| Istio | {versions.ISTIO} |",
        f"| Gateway API's echo server | {versions.GATEWAY_API_OF_SUITE} |",
        f"| Kubernetes | {versions.KUBERNETES} |",
    ]
    return "\n".join(lines) + "\n"


def _cell(result: Result | None) -> str:
    return "not run" if result is None else f"{_WORDS[result.verdict]}, {result.seconds:.1f} s"


def _passed(run: Run) -> str:
    return f"{sum(result.verdict == 'PASS' for result in run.results)} of {len(run.results)}"

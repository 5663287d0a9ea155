"""`python -m e2e.conformance`: the suite with the router, with the reference picker, and what came of it."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from e2e.cluster import engine, golang, kind
from e2e.cluster.command import ClusterError
from e2e.cluster.golang import BuildError
from e2e.cluster.steps import Steps
from e2e.conformance import addresses, istio, page, pickers, suite, weighted

BUILD = Path(__file__).parents[2] / "build" / "conformance"


def main() -> None:
    """Exit code 1, and why, if it cannot be done, or if the router fails what the reference picker passes."""
    parser = argparse.ArgumentParser(prog="python -m e2e.conformance", description=__doc__)
    parser.add_argument(
        "--picker",
        choices=(*pickers.PICKERS, "both"),
        default="both",
        help="with which the suite runs [default: both; the page is written then alone]",
    )
    parser.add_argument("--run-test", metavar="NAME", help="only this test; no page is written")
    parser.add_argument(
        "--remove", action="store_true", help="remove Istio and all that is left, and run nothing"
    )
    given = parser.parse_args()
    steps = Steps(partial(print, flush=True))
    try:
        if not (engine.answers() and kind.runs()):
            raise ClusterError("there is no cluster: run `make e2e-up`")
        if given.remove:
            steps.run("what the suite deployed", suite.remove)
            steps.run("Istio", istio.remove)
            return
        wanted = list(pickers.PICKERS) if given.picker == "both" else [given.picker]
        worse = conform(steps, wanted, given.run_test)
    except (ClusterError, BuildError) as error:
        sys.exit(f"conformance: {error}")
    if worse:
        sys.exit(f"conformance: passed by the reference picker alone: {', '.join(worse)}")


def conform(steps: Steps, wanted: list[str], test: str | None) -> list[str]:
    """Run the suite with each of these pickers, and return the tests that the reference alone passes.

    Raises `ClusterError` or `BuildError`.
    """
    # In each list one leaves much of what the next is made of.
    steps.side_by_side(
        [
            [(one.name, partial(golang.program, one)) for one in (istio.PILOT_DISCOVERY, istio.PILOT_AGENT)],
            [
                *((one.name, partial(golang.program, one)) for one in (pickers.REFERENCE, pickers.ECHO)),
                ("suite", partial(golang.tests, suite.SUITE)),
            ],
        ]
    )
    steps.run("Istio", istio.install)
    base = pickers.manifests() / "base.yaml"
    kind.apply([istio.trust(namespace, name) for namespace, name in pickers.by_pool(base).values()])
    runs = {}
    with addresses.given():
        for picker in wanted:
            steps.run(f"images, picker {picker}", partial(pickers.put, picker))
            steps.run("what an earlier run left", suite.remove)
            name = f"Istio, endpoints picked by {picker}"
            runs[picker] = steps.run(f"suite, picker {picker}", partial(suite.start, name, test))
            _keep(picker, runs[picker])
            for result in runs[picker].results:
                steps.say(f"    {result.verdict} {result.name} {result.seconds:.1f} s")
            if picker == "extproc" and test is None:
                seen = steps.run("route of the weighted pools", weighted.seen)
                mended = steps.run("the same with a picker for each", partial(_mended, seen))
        suite.remove()
    if test is None and len(runs) == len(pickers.PICKERS):
        for picker, run in runs.items():
            page.keep(picker, run)
        page.write(runs, seen, mended)
    passed = {
        picker: {one.name for one in run.results if one.verdict == "PASS"} for picker, run in runs.items()
    }
    return sorted(passed.get("reference", set()) - passed.get("extproc", set())) if len(passed) > 1 else []


def _mended(seen: weighted.Told) -> suite.Result:
    """The test of the weighted pools, where each has its own picker asked."""
    made = weighted.mended(seen, pickers.by_pool(pickers.manifests() / "base.yaml"))
    kind.apply([made])
    try:
        run = suite.start("Istio with an EnvoyFilter, endpoints picked by extproc", weighted.TEST)
    finally:
        place = made["metadata"]
        kind.kubectl("delete", f"envoyfilter/{place['name']}", f"--namespace={place['namespace']}")
    _keep("extproc-with-a-picker-for-each-pool", run)
    return next(result for result in run.results if result.name == weighted.TEST)


def _keep(name: str, run: suite.Run) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / f"{name}.log").write_text(run.said)


if __name__ == "__main__":
    main()

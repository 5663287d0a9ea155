"""The suite itself: built, run in the control plane's node, where gateways' addresses answer, and read."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import golang, kind, versions
from e2e.cluster.command import ClusterError, run
from e2e.conformance import istio, pickers

SUITE = golang.Program(f"{pickers.MODULE}/conformance", versions.INFERENCE_EXTENSION, module=pickers.MODULE)
NAMESPACES = ("inference-conformance-infra", "inference-conformance-app-backend")
MOST_SECONDS = 1500
"""For all of the tests. One that fails gives up after 200 s."""

_REPORT = "/kind/conformance-report.yaml"
_BINARY = "/kind/conformance.test"
_ENDED = re.compile(r"^    --- (PASS|FAIL|SKIP): TestConformance/([^/\s]+) \((\d+\.\d+)s\)$", re.M)


@dataclass(frozen=True)
class Result:
    """How one test ended."""

    name: str
    verdict: str
    """PASS, FAIL or SKIP."""
    seconds: float


@dataclass(frozen=True)
class Run:
    """One run of the suite."""

    results: tuple[Result, ...]
    said: str
    """All that it printed."""
    report: str
    """Its own report, as YAML; empty if it did not come so far."""


def flags(implementation: str, test: str | None = None) -> list[str]:
    """The suite's flags: which gateway, and for its report who `implementation` is. `test`: only this one."""
    return [
        "-gateway-class",
        istio.CLASS,
        "-allow-crds-mismatch=true",
        "-conformance-profiles=Gateway",
        "-organization=warmroute",
        f"-project={implementation}",
        "-url=https://istio.io",
        f"-version={versions.ISTIO}",
        "-contact=warmroute",
        # It would not wait until they are gone; `remove` does.
        "-cleanup-base-resources=false",
        f"-report-output={_REPORT}",
        *([] if test is None else [f"-run-test={test}"]),
    ]


def start(implementation: str, test: str | None = None) -> Run:
    """Run it. Raises `ClusterError` if no test ended, `golang.BuildError` if it cannot be built."""
    node = kind.CONTROL_PLANE
    run("docker", "cp", golang.tests(SUITE), f"{node}:{_BINARY}")
    run("docker", "exec", node, "rm", "--force", _REPORT)
    done = subprocess.run(
        [
            *("docker", "exec", "--env", "KUBECONFIG=/etc/kubernetes/admin.conf", node),
            *("timeout", str(MOST_SECONDS), _BINARY, "-test.v", "-test.run=^TestConformance$"),
            *flags(implementation, test),
        ],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=MOST_SECONDS + 60,
    )
    results = tuple(read(done.stdout))
    if not results:
        raise ClusterError(f"the suite ended before its first test:\n{(done.stdout + done.stderr)[-4000:]}")
    report = run("docker", "exec", node, "sh", "-c", f"cat {_REPORT} 2>/dev/null || true")
    return Run(results, done.stdout + done.stderr, report)


def read(said: str) -> Iterator[Result]:
    """The tests that ended, by the words of `go test -v`, in the order of their names."""
    ended = {name: Result(name, verdict, float(seconds)) for verdict, name, seconds in _ENDED.findall(said)}
    for name in sorted(ended):
        yield ended[name]


def test_manifest(name: str) -> Path:
    """One of the manifests that the tests apply. Raises `golang.BuildError`."""
    return pickers.manifests().parent / "tests" / name


def remove() -> None:
    """Remove what the suite deployed, and wait until it is gone. Raises `ClusterError`."""
    kind.kubectl("delete", "namespace", *NAMESPACES, "--ignore-not-found", "--wait", seconds=300)

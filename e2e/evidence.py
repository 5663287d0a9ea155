"""What the cluster looked like when a story failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from e2e.cluster import engine, kind
from e2e.cluster.command import ClusterError

CHARACTERS = 8000
"""Of each command's output, from its end."""


def attach(report: pytest.TestReport, commands: Iterable[Sequence[str]]) -> pytest.TestReport:
    """The report; if it is of a failure, with what kubectl says to each of these commands."""
    if report.failed and engine.answers() and kind.runs():
        for words in commands:
            try:
                said = kind.kubectl(*words, seconds=20)
            except ClusterError as error:
                said = str(error)
            report.sections.append((f"kubectl {' '.join(words)}", said[-CHARACTERS:]))
    return report

"""Findings as text for people, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from extproc.doctor.diagnosis import Evidence, attached
from extproc.doctor.findings import Finding, Severity

WIDTH = 100
_INDENT = " " * 9


def as_json(evidence: Evidence, findings: Sequence[Finding]) -> dict[str, Any]:
    """One object: the Service, what asks it, and the findings."""
    return {
        "service": str(evidence.service),
        "attached": attached(evidence),
        "findings": [finding._asdict() for finding in findings],
    }


def as_text(evidence: Evidence, findings: Sequence[Finding]) -> str:
    """A paragraph for each finding, and a last line that counts them."""
    asks = attached(evidence)
    lines = [f"Service {evidence.service} is asked by {', '.join(asks) if asks else 'nobody'}", ""]
    for finding in findings:
        lines.append(f"{finding.severity:<9}{finding.object}: {finding.name}")
        lines += _indented(finding.what)
        lines += _indented(f"→ {finding.remedy}")
        lines.append("")
    lines.append(_count(findings))
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return wrap(
        text,
        WIDTH,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _count(findings: Sequence[Finding]) -> str:
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    if not findings:
        return "nothing wrong was found"
    return f"{_counted(errors, 'error')}, {_counted(len(findings) - errors, 'warning')}"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"

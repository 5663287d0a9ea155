"""docs/doctor.md lists what the doctor can find, and nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_names_every_finding() -> None:
    table = (ROOT / "docs" / "doctor.md").read_text().partition("## Findings")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row)} == set(_found_in_the_code())


def _found_in_the_code() -> list[str]:
    """The first argument of each finding that is made."""
    return [
        call.args[0].value
        for file in (ROOT / "extproc" / "doctor").glob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("error", "warning", "Finding")
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    ]

"""What a clock that is set forward or back can do: nothing to routing, which never looks at one."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "extproc"
MAY_ASK_FOR_THE_DATE = {
    "commands/check.py": "so it checks them",
    "commands/envoy_config.py": "so it checks them",
    "demo/report.py": "a report says when it was made",
    "reload.py": "a metric says when the configuration was last taken",
    "request_log.py": "a line says when its request came",
    "tls.py": "certificates are valid from one date to another",
}
_ASKS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("date", "today"),
}


def asks_for_the_date(path: Path) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in _ASKS
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_only_what_has_to_do_with_dates_reads_a_clock_that_can_be_set() -> None:
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if asks_for_the_date(path)}
    assert found == set(MAY_ASK_FOR_THE_DATE)

"""A wall clock that jumps, by NTP or by hand, changes no decision: what decides uses a monotonic clock."""

from __future__ import annotations

import ast
from pathlib import Path

import extproc

WALL = {"time.time", "time.time_ns", "time.localtime", "time.gmtime", "datetime.now", "datetime.utcnow"}

ALLOWED = {
    "reload.py": "says in a metric when the configuration was taken",
    "tls.py": "certificates are valid between two dates",
    "request_log.py": "says in the log when a request came",
    "commands/check.py": "certificates are valid between two dates",
    "commands/envoy_config.py": "certificates are valid between two dates",
    "demo/report.py": "the report says when it was made",
    "simulation/http.py": "the field `created` of OpenAI's replies",
}
"""Where the date is what is meant."""


def reads_of_the_wall_clock(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            found += [name for wall in WALL if name == wall or name.endswith(f".{wall}")]
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [f"time.{alias.name}" for alias in node.names if f"time.{alias.name}" in WALL]
    return found


def test_only_what_means_the_date_reads_the_wall_clock() -> None:
    root = Path(extproc.__file__).parent
    readers = {str(path.relative_to(root)) for path in root.rglob("*.py") if reads_of_the_wall_clock(path)}
    assert readers <= ALLOWED.keys()


def test_the_search_finds_a_read_in_every_spelling(tmp_path: Path) -> None:
    for text in (
        "import time\ntime.time()",
        "from time import time",
        "import datetime\ndatetime.datetime.now()",
        "import time\nf = time.time_ns",
    ):
        path = tmp_path / "module.py"
        path.write_text(text)
        assert reads_of_the_wall_clock(path), text

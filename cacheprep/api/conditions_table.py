"""`python -m cacheprep.api.conditions_table PAGE` writes the tables of conditions and reasons into a page."""

from __future__ import annotations

import sys
from pathlib import Path

from cacheprep.api.conditions import ConditionType, Reason


def conditions_table() -> str:
    """Every condition, and what it means when it is True, as a table in Markdown."""
    rows = [f"| `{condition}` | {condition.about} |" for condition in ConditionType]
    return "\n".join(["| condition | True means |", "|---|---|", *rows])


def reasons_table() -> str:
    """Every reason, and what to do about it, as a table in Markdown."""
    rows = [f"| `{reason}` | {reason.remedy} |" for reason in Reason]
    return "\n".join(["| reason | what to do |", "|---|---|", *rows])


def rewritten(page: str) -> str:
    """The page with both tables between their marks."""
    for name, table in (("conditions", conditions_table()), ("reasons", reasons_table())):
        head, mark = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        before, _, rest = page.partition(head)
        after = rest.rpartition(mark)[2]
        page = f"{before}{head}{table}{mark}{after}"
    return page


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m cacheprep.api.conditions_table PAGE")
    path = Path(sys.argv[1])
    path.write_text(rewritten(path.read_text()))

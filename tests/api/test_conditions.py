"""The page on the model cache says every condition and reason, as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cacheprep.api.conditions import ConditionType, Reason, reason_of
from cacheprep.api.conditions_table import conditions_table, reasons_table
from cacheprep.failures import Reason as FailureReason

PAGE = Path(__file__).parents[2] / "docs" / "model-cache.md"


@pytest.mark.parametrize(
    ("name", "table"), [("conditions", conditions_table()), ("reasons", reasons_table())]
)
def test_the_page_has_the_table_that_the_code_makes(name: str, table: str) -> None:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", PAGE.read_text(), re.S)
    assert found is not None
    assert found[1] == table, "run `python -m cacheprep.api.conditions_table docs/model-cache.md`"


def test_every_reason_on_the_page_is_one_that_the_code_gives() -> None:
    sources = "\n".join(path.read_text() for path in (PAGE.parents[1] / "cacheprep").rglob("*.py"))
    of_failures = {failure.name for failure in FailureReason}
    given = {reason.name for reason in Reason if f"Reason.{reason.name}" in sources}
    assert {reason.name for reason in Reason} == given | of_failures


def test_every_reason_of_a_failure_is_a_reason_of_a_condition() -> None:
    for failure in FailureReason:
        assert reason_of(failure).value == failure.value


def test_every_reason_is_a_word_of_kubernetes_and_says_what_to_do() -> None:
    for reason in Reason:
        assert re.fullmatch("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", reason.value)
        assert reason.remedy.endswith(".")
    for condition in ConditionType:
        assert condition.about.endswith(".")

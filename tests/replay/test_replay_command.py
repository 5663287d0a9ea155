"""`extproc replay` as its user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from extproc.commands.replay import command
from tests.replay.traffic import DATA


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_policies_are_compared_on_the_same_requests() -> None:
    result = run(
        str(DATA / "mooncake.jsonl"), "--engines", "2", "--policy", "PREFIX_AWARE", "--policy", "random"
    )
    assert result.exit_code == 0, result.output
    assert "60 requests over 15 s" in result.output
    assert "PREFIX_AWARE" in result.output
    assert "requests replayed per second" in result.output


def test_json_is_all_that_is_printed_when_asked_for() -> None:
    result = run(str(DATA / "mooncake.jsonl"), "--json", "--policy", "PREFIX_AWARE:concurrencyThreshold=8|16")
    report = json.loads(result.stdout)
    assert list(report["policies"]) == [
        "PREFIX_AWARE concurrencyThreshold=8",
        "PREFIX_AWARE concurrencyThreshold=16",
    ]
    assert set(report["policies"]["PREFIX_AWARE concurrencyThreshold=8"]["ttft_ms"]) == {
        "mean",
        "p50",
        "p95",
        "p99",
    }
    assert report["worth"]["verdict"]
    assert report["simulated_engines"]


def test_the_page_stands_alone_and_marks_events(tmp_path: Path) -> None:
    result = run(
        str(DATA / "mooncake.jsonl"),
        "--engines",
        "2",
        "--add",
        "1@6s",
        "--policy",
        "random",
        "--out",
        str(tmp_path),
    )
    assert result.exit_code == 0, result.output
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "1 joins at 6 s" in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert json.loads((tmp_path / "report.json").read_text())["settings"]["changes"] == ["1 joins at 6 s"]


def test_lines_left_out_are_named_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text((DATA / "mooncake.jsonl").read_text() + '{"hash_ids": []}\n')
    result = run(str(path), "--policy", "random")
    assert result.exit_code == 0
    assert "1 lines left out" in result.output
    assert "trace.jsonl:61: " in result.output.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "nothing"], "expected one of RANDOM"),
        (["--engines", "0"], "0 is not in the range"),
        (["--add", "soon"], "like 2@600s"),
        (["--remove", "3@9s"], "engine-1 to engine-7"),
        (["--part", "0.5", "0.5"], "is not before"),
    ],
)
def test_an_impossible_setting_is_refused(arguments: list[str], says: str) -> None:
    result = run(str(DATA / "mooncake.jsonl"), *arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n")
    result = run(str(path))
    assert result.exit_code == 1
    assert "none of the formats" in result.output

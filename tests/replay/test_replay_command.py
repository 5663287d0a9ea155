"""`extproc replay` as its user sees it."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from extproc.commands.replay import command
from extproc.prefix import BlockKeys
from extproc.replay import log
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
    assert page.count("<svg") == 5
    assert "1 engine joins at 6 s" in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert json.loads((tmp_path / "report.json").read_text())["settings"]["changes"] == [
        "1 engine joins at 6 s"
    ]


def test_lines_left_out_are_named_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text((DATA / "mooncake.jsonl").read_text() + '{"hash_ids": []}\n')
    result = run(str(path), "--policy", "random")
    assert result.exit_code == 0
    assert "1 line was left out" in result.output
    assert "trace.jsonl:61: " in result.output


def test_the_analysis_comes_before_the_policies_and_says_what_can_be_gained() -> None:
    result = run(str(DATA / "mooncake.jsonl"), "--engines", "2", "--policy", "random")
    found = result.output.index("Found by 2 engines with 425,984 tokens of KV cache each")
    assert result.output.index("Seen before") < found < result.output.index("policy")
    assert "when requests go anywhere" in result.output
    assert "no routing can reach" in result.output


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("PREFIX_AWARE:balanceFactor=2", "balanceFactor counts only with a number as prefixLength"),
        ("PREFIX_AWARE:prefixLength=auto,balanceFloor=2", "balanceFloor counts only with a number"),
        ("PREFIX_AWARE:prefixLength=7", "expected auto or a whole number from 1024 to 65536"),
        ("PREFIX_AWARE:prefixLength=2048,balanceFactor=1", "expected a number from 1.01 to 100"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused_and_says_why(policy: str, said: str) -> None:
    result = run(str(DATA / "mooncake.jsonl"), "--policy", policy)
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())


def test_prefix_lengths_are_compared_with_none() -> None:
    result = run(str(DATA / "mooncake.jsonl"), "--json", "--policy", "PREFIX_AWARE:prefixLength=auto|2048")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["policies"]) == 2


@pytest.mark.parametrize("best_by", ["ttft-mean", "ttft-p95", "hit-rate", "balance"])
def test_policies_are_ranked_by_what_one_asks_for(best_by: str) -> None:
    policies = ["--policy", "random", "--policy", "fixed-prefix:length=1024|8192"]
    result = run(str(DATA / "mooncake.jsonl"), "--engines", "4", *policies, "--best-by", best_by, "--json")
    report = json.loads(result.stdout)
    figures = {
        name: {
            "ttft-mean": row["ttft_ms"]["mean"],
            "ttft-p95": row["ttft_ms"]["p95"],
            "hit-rate": -row["hit_rate"],
            "balance": row["work_max_over_mean"],
        }[best_by]
        for name, row in report["policies"].items()
    }
    assert report["best_by"] == best_by
    assert report["ranking"] == sorted(figures, key=lambda name: figures[name])
    assert len(report["ranking"]) == 3


def test_policies_run_side_by_side_come_to_the_same_as_one_after_the_other() -> None:
    policies = ["--policy", "random", "--policy", "least-in-flight", "--policy", "scored"]
    one, two = (
        json.loads(run(str(DATA / "mooncake.jsonl"), *policies, "--json", "--jobs", jobs).stdout)
        for jobs in ("1", "3")
    )
    assert one["policies"] == two["policies"]
    assert list(one["policies"]) == ["random", "least-in-flight", "scored"]


def test_several_traces_have_a_report_each_and_none_overwrites_another(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    other = tmp_path / "a" / "mooncake.jsonl"
    other.write_text("".join((DATA / "mooncake.jsonl").read_text().splitlines(keepends=True)[:30]))
    paths = [str(DATA / "mooncake.jsonl"), str(other)]
    result = run(*paths, "--policy", "random", "--json", "--out", str(tmp_path / "out"))
    assert [report["trace"]["requests"] for report in json.loads(result.stdout)] == [60, 30]
    found = [
        json.loads((tmp_path / "out" / name / "report.json").read_text())["trace"]["requests"]
        for name in ("mooncake", "mooncake-2")
    ]
    assert found == [60, 30]


def test_files_of_the_same_traffic_can_be_joined(tmp_path: Path) -> None:
    lines = (DATA / "mooncake.jsonl").read_text().splitlines(keepends=True)
    parts = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for at, part in enumerate(parts):
        part.write_text("".join(lines[at::2]))
    joined, whole = (
        json.loads(run(*map(str, paths), "--policy", "random", "--json", *more).stdout)
        for paths, more in ((parts, ["--join"]), ([DATA / "mooncake.jsonl"], []))
    )
    assert joined["trace"]["name"] == "a and 1 more"
    assert joined["worth"] == whole["worth"]
    for name in ("requests", "seconds"):
        assert joined["trace"][name] == whole["trace"][name]


def test_one_pool_of_a_log_can_be_chosen(tmp_path: Path) -> None:
    line = log.formatter(b"a secret of some length")
    path = tmp_path / "requests.jsonl"
    with path.open("wb") as file:
        for number in range(30):
            pool = ("small", "large")[number % 3 == 0]
            keys = BlockKeys([1, number + 2], [512, 1024])
            file.write(line(log.Record(1.7e9 + number, pool, keys, 1100)))
    both = run(str(path), "--policy", "random")
    assert "30 requests" in both.output
    assert "--pool chooses: small (20 requests), large (10 requests)" in both.output
    one = run(str(path), "--policy", "random", "--pool", "large", "--output-tokens", "50")
    assert "10 requests over 27 s" in one.output
    assert "each is taken as 50 tokens" in one.output
    none = run(str(path), "--policy", "random", "--pool", "medium")
    assert none.exit_code == 1
    assert "no request of pool 'medium'; there are: large, small" in none.output


def test_after_ctrl_c_what_was_done_is_shown_and_no_process_is_left(tmp_path: Path) -> None:
    long = tmp_path / "long.jsonl"
    lines = (DATA / "mooncake.jsonl").read_text().splitlines()
    with long.open("w") as file:
        for copy in range(500):
            for text in lines:
                row = json.loads(text)
                row["timestamp"] += copy * 15_000
                file.write(json.dumps(row) + "\n")
    arguments = [str(DATA / "mooncake.jsonl"), str(long), "--policy", "random", "--policy", "scored"]
    with subprocess.Popen(
        [sys.executable, "-m", "extproc", "replay", *arguments, "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = ""
        for text in process.stdout:
            shown += text
            if text.startswith("long: 30000 requests"):
                break
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == 130
        # Both ends of its output are closed: nobody else has them open.
        assert "requests replayed per second" in shown
        assert "Traceback" not in process.stderr.read()
        process.stdout.read()
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "nothing"], "expected one of RANDOM"),
        (["--engines", "0"], "0 is not in the range"),
        (["--add", "soon"], "like 2@600s"),
        (["--remove", "3@9s"], "like engine-3@900s"),
        (["--remove", "engine-9@9s"], "engine-9 leaves at 9 s: there is none; by then there are engine-1 to"),
        (
            ["--remove", "engine-1@2s", "--remove", "engine-1@3s"],
            "engine-1 leaves at 3 s: it has left before",
        ),
        (["--add", "1@1h"], "1 engine joins at 3600 s: the last request comes at 15 s"),
        (["--policy", "RADNOM"], "did you mean RANDOM"),
        (["--policy", "scored:prefix=-1"], "expected a number from 0 to 100"),
        (["--kv-tokens", "5", "--blocks", "5"], "give one of them"),
        (["--time-scale", "0"], "not in the range"),
        (["--time-scale", "500000"], "more than 31 days"),
        (["--out", "/dev/null/x"], "Not a directory"),
        (["--part", "0.5", "0.5"], "is not before"),
    ],
)
def test_an_impossible_setting_is_refused(arguments: list[str], says: str) -> None:
    result = run(str(DATA / "mooncake.jsonl"), *arguments)
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"dear diary\n", "the first line is of none of the formats mooncake"),
        (bytes(range(256)) * 100, "a binary file is of none of the formats"),
        (gzip.compress(b'{"hash_ids": []}\n'), "is compressed with gzip: decompress it first"),
        (b"", "is empty"),
        (b"\n\n  \n", "is empty"),
        (b'{"timestamp": 0, "input_length": 1}\n', "none of the formats"),
        (
            b'{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n'
            b'{"timestamp": 9e12, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n',
            "spread over 104167 days, at most 31 can be replayed: are times in another unit?",
        ),
    ],
)
def test_a_file_that_is_no_trace_is_refused_and_the_reason_given(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    result = run(str(path))
    assert result.exit_code == 1
    assert f"{path}: " in result.output
    assert says in result.output
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)


def test_what_is_unfit_in_one_of_several_traces_does_not_undo_those_before(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("dear diary\n")
    result = run(str(DATA / "mooncake.jsonl"), str(path), "--policy", "random")
    assert result.exit_code == 1
    assert "requests replayed per second" in result.output

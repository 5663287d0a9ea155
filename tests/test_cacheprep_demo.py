"""The second part of `make demo`, short: what it shows is so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cacheprep.demo import empty


@pytest.mark.timeout(240)
def test_a_killed_fetch_goes_on_and_an_engine_that_joins_cold_gets_little_until_it_is_warm(
    tmp_path: Path,
) -> None:
    out = tmp_path / "demo"
    options = ("--size", "64MiB", "--bandwidth", "12MiB", "--seconds", "20", "--out", str(out))
    ended = subprocess.run(
        [sys.executable, "-m", "cacheprep", "demo", *options], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads((out / "report.json").read_text())
    weights = report["weights"]
    assert 0 < weights["kept"] < weights["size"]
    assert weights["kept"] + weights["fetched_again"] == weights["size"]
    states = [one["state"] for one in report["cold"]]
    assert states[0] == "not there"
    assert states[-1] == "warm"
    cold = [one for one in report["cold"] if one["state"] == "cold"]
    assert sum(one["on_cold"] for one in cold) < 0.25 * sum(one["requests"] for one in cold)
    assert "kept" in ended.stdout
    assert "ok" in ended.stdout


def test_what_no_demo_made_is_not_removed(tmp_path: Path) -> None:
    mine = tmp_path / "thesis.tex"
    mine.touch()
    ended = subprocess.run(
        [sys.executable, "-m", "cacheprep", "demo", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert f"--out {tmp_path}: has files that no demo made" in ended.stderr
    assert mine.exists()


def test_what_an_earlier_demo_left_is(tmp_path: Path) -> None:
    empty(tmp_path / "demo")
    old = tmp_path / "demo" / "report.json"
    old.touch()
    empty(tmp_path / "demo")
    assert not old.exists()

"""The demo as a whole: real Envoy, real router, short traffic."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from extproc.demo import experiment, report, stack
from extproc.demo.console import PhaseProgress
from extproc.demo.traffic import traffic


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _writing_below(directory: Path) -> list[int]:
    """Return the processes whose output goes to a log below `directory`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(process / "fd" / "1").startswith(f"{directory}/logs/"):
                found.append(int(process.name))
    return found


def test_ports_are_those_wanted_unless_taken_and_all_distinct() -> None:
    first = stack.free_ports([0, 0, 0])
    assert len(set(first)) == 3
    assert stack.free_ports(first) == first
    again = stack.free_ports([first[0], first[0]])
    assert again[0] == first[0] != again[1]


async def test_a_short_demo_compares_three_strategies_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "PROBES", 40)
    monkeypatch.setattr(experiment, "UNDECIDED_LIMIT", 1.0)  # a busy machine is no reason to fail here
    used = traffic(5, 8, 1)
    used = replace(used, arrivals=used.arrivals[:16])
    monkeypatch.setattr(experiment, "WARM_UP_REQUESTS", 4)
    console = Console(file=(tmp_path / "console").open("w"), width=120)
    async with stack.running(tmp_path, 2, "demo", 1) as running:
        pids = [child.process.pid for child in running.children]
        with PhaseProgress(console) as progress:
            result = await experiment.guarded(running, experiment.run(running, used, progress))
        assert all(map(_is_alive, pids))
    assert not any(map(_is_alive, pids))

    content = report.content(result, used, {"engines": 2, "rate": 8, "seed": 1, "preset": "demo"})
    as_json, as_html = report.write(tmp_path, content, result)
    console.print(report.table(content))
    written: dict[str, Any] = orjson.loads(as_json.read_bytes())
    assert list(written["strategies"]) == list(stack.STRATEGIES)
    for name, row in written["strategies"].items():
        assert set(row["ttft_ms"]) == {"p50", "p95", "p99"}
        assert 0 < row["hit_rate"] < 1
        assert row["requests_per_s"] > 0
        assert set(row["share"]) == {"engine-1", "engine-2"}
        assert sum(row["share"].values()) == pytest.approx(1, abs=0.001)
        assert row["failed"] == 0
        reasons = {
            "RANDOM": {"random"},
            "LEAST_OUTSTANDING_REQUESTS": {"load"},
            "PREFIX_AWARE": {"new", "prefix", "spill"},
        }
        assert set(row["picks"]) - {"unpinned"} <= reasons[name]
    assert set(written["router_added_ms"]) == {"p50", "p99"}
    assert written["simulated_engines"] is True

    page = as_html.read_text()
    assert "engines are simulated" in page
    assert page.count("<svg") == 4
    assert not re.search(r'(src|href)="(?!#)', page), "the page must not load anything"
    said = (tmp_path / "console").read_text()
    assert "PREFIX_AWARE: TTFT p50" in said


async def test_a_child_that_dies_is_named_with_the_end_of_its_log_and_the_others_are_stopped(
    tmp_path: Path,
) -> None:
    async with stack.running(tmp_path, 2, "demo", 1) as running:
        pids = [child.process.pid for child in running.children]
        router = next(child for child in running.children if child.name == "router")
        router.process.kill()
        with pytest.raises(stack.StackError, match=r"(?s)router ended with code -9.*serving"):
            await experiment.guarded(running, asyncio.Event().wait())
    assert len(pids) == 3
    assert not any(map(_is_alive, pids))


async def test_a_child_that_does_not_start_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(stack.StackError, match=r"(?s)engines ended with code 2.*no-such-preset"):
        async with stack.running(tmp_path, 2, "no-such-preset", 1):
            pass


@pytest.mark.parametrize(
    ("line", "number", "children"),
    [(b"warmroute demo", signal.SIGTERM, range(4)), (b"RANDOM", signal.SIGINT, [3])],
    ids=["SIGTERM while it starts", "SIGINT while it runs"],
)
async def test_an_interrupted_demo_exits_130_and_leaves_no_process(
    tmp_path: Path, line: bytes, number: signal.Signals, children: Collection[int]
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from extproc.cli import main; main()"),
        *("demo", "--engines", "2", "--out", str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert process.stdout is not None
        while not (await process.stdout.readline()).startswith(line):
            assert process.returncode is None
        assert len(_writing_below(tmp_path)) in children
        process.send_signal(number)
        output, _ = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 130, output
        assert _writing_below(tmp_path) == []
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

"""`extproc serve` as a process: exit codes, signals, live reload."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

SERVE = [sys.executable, "-m", "extproc", "serve", "--config"]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Serving:
    """A running router whose JSON log can be waited for."""

    def __init__(self, process: subprocess.Popen[str], metrics: int) -> None:
        self.process = process
        self._metrics = metrics

    def wait_for(self, event: str) -> dict[str, object]:
        """The next log line with this event. Ends with the process, and so with the test's time limit."""
        log: IO[str] | None = self.process.stderr
        assert log is not None
        for line in log:
            entry: dict[str, object] = json.loads(line)
            if entry["event"] == event:
                return entry
        raise AssertionError(f"the router ended without logging {event!r}")

    def metric(self, line: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics}/metrics") as reply:
            text = reply.read().decode()
        values = [row.rsplit(" ", 1)[1] for row in text.splitlines() if row.startswith(line + " ")]
        return float(values[0])

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.02)


def configuration(ports: list[int], pools: str = "") -> str:
    return (
        f"listen: 127.0.0.1:{ports[0]}\nhealth: 127.0.0.1:{ports[1]}\nmetrics: 127.0.0.1:{ports[2]}\n"
        "log: {format: json}\ndrainTimeout: 1s\n"
        + (pools or 'pools: [{name: a, endpoints: {static: ["10.0.0.1:80"]}}]\n')
    )


@contextmanager
def serving(path: Path, ports: list[int]) -> Iterator[Serving]:
    with subprocess.Popen([*SERVE, str(path)], stderr=subprocess.PIPE, text=True) as process:
        router = Serving(process, ports[2])
        try:
            router.wait_for("serving")
            yield router
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_with_0(tmp_path: Path, number: signal.Signals) -> None:
    ports = free_ports(3)
    path = tmp_path / "router.yaml"
    path.write_text(configuration(ports))
    with serving(path, ports) as router:
        router.process.send_signal(number)
        router.wait_for("draining")
        router.wait_for("stopped")
        assert router.process.wait(10) == 0


def test_a_wrong_configuration_ends_with_2_and_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text("pools: [{name: a, strateg: RANDOM, endpoints: {static: ['10.0.0.1:80']}}]")
    ended = subprocess.run([*SERVE, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "did you mean strategy" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("index", [0, 1, 2])
def test_an_address_in_use_ends_with_1_and_names_it(tmp_path: Path, index: int) -> None:
    ports = free_ports(3)
    path = tmp_path / "router.yaml"
    path.write_text(configuration(ports))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[index]))
        taken.listen()
        ended = subprocess.run([*SERVE, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"127.0.0.1:{ports[index]}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_changed_file_applies_live_and_a_bad_one_keeps_what_runs(tmp_path: Path) -> None:
    ports = free_ports(3)
    path = tmp_path / "router.yaml"
    path.write_text(configuration(ports))
    with serving(path, ports) as router:
        path.write_text(configuration(ports, 'pools: [{name: b, endpoints: {static: ["10.0.0.2:80"]}}]\n'))
        router.until(lambda: router.metric('extproc_config_reloads_total{result="success"}') == 1)
        assert router.metric('extproc_pool_synced{pool="b"}') == 1
        path.write_text("pools: 5\n")
        router.until(lambda: router.metric('extproc_config_reloads_total{result="failure"}') == 1)
        assert router.metric("extproc_config_last_reload_successful") == 0
        assert router.metric('extproc_pool_synced{pool="b"}') == 1


def test_sighup_reads_the_file_again(tmp_path: Path) -> None:
    ports = free_ports(3)
    path = tmp_path / "router.yaml"
    path.write_text(configuration(ports))
    with serving(path, ports) as router:
        router.process.send_signal(signal.SIGHUP)
        assert router.wait_for("configuration reloaded")["changed"] is False


def test_endpoints_in_a_file_are_followed_and_until_it_exists_the_pool_is_unknown(tmp_path: Path) -> None:
    ports = free_ports(3)
    path = tmp_path / "router.yaml"
    path.write_text(configuration(ports, "pools: [{name: a, endpoints: {file: eps.yaml}}]\n"))
    with serving(path, ports) as router:
        assert router.metric('extproc_pool_synced{pool="a"}') == 0
        (tmp_path / "eps.yaml").write_text("- 10.0.0.1:80\n- 10.0.0.2:80\n")
        router.until(lambda: router.metric('extproc_pool_synced{pool="a"}') == 1)
        assert router.metric('extproc_endpoints{pool="a",state="eligible"}') == 2
        (tmp_path / "eps.yaml").write_text("- 10.0.0.1:80\n")
        router.until(lambda: router.metric('extproc_endpoints{pool="a",state="eligible"}') == 1)


def test_sighup_while_it_starts_is_no_reason_to_end(tmp_path: Path) -> None:
    ports = free_ports(3)
    path = tmp_path / "router.yaml"
    path.write_text(configuration(ports))
    with subprocess.Popen([*SERVE, str(path)], stderr=subprocess.PIPE, text=True) as process:
        router = Serving(process, ports[2])
        status = Path(f"/proc/{process.pid}/status")
        hangup = 1 << signal.SIGHUP - 1
        try:
            router.until(
                lambda: bool(int(status.read_text().partition("SigIgn:")[2].split()[0], 16) & hangup)
            )
            process.send_signal(signal.SIGHUP)
            router.wait_for("serving")
        finally:
            process.kill()


def test_what_engines_say_of_their_load_is_shown_and_one_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    ports = free_ports(4)
    gone = f"127.0.0.1:{ports[3]}"
    simulate = [sys.executable, "-m", "extproc", "simulate", "--log", "json", "--port", "0"]
    with subprocess.Popen(simulate, stdout=subprocess.PIPE, text=True) as engines:
        try:
            assert engines.stdout is not None
            (engine,) = next(
                line["engines"] for line in map(json.loads, engines.stdout) if line["event"] == "ready"
            ).values()
            path = tmp_path / "router.yaml"
            where = f'{{static: ["{engine}", "{gone}"]}}'
            path.write_text(configuration(ports, f"pools: [{{name: a, endpoints: {where}}}]\n"))
            with serving(path, ports) as router:
                unknown = router.wait_for("engine metrics are unknown")
                assert (unknown["pool"], unknown["endpoints"]) == ("a", [gone])
                of_engine = f'{{endpoint="{engine}",pool="a"}}'
                assert router.metric(f"extproc_engine_requests_waiting{of_engine}") == 0
                assert router.metric('extproc_engine_metrics_endpoints{pool="a",state="known"}') == 1
                router.process.send_signal(signal.SIGTERM)
                assert router.process.wait(10) == 0
        finally:
            engines.kill()

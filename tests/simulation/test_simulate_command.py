"""`extproc simulate` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request

import orjson


def test_it_says_that_it_simulates_is_ready_refuses_a_taken_port_and_stops_on_sigterm() -> None:
    command = [sys.executable, "-c", "from extproc.cli import main; main()", "simulate", "--log", "json"]
    process = subprocess.Popen([*command, "--port", "0", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [orjson.loads(process.stdout.readline()) for _ in range(4)]
        assert all(line["simulation"] is True for line in lines)
        assert [line["event"] for line in lines] == ["simulation", "engine", "engine", "ready"]
        addresses = list(lines[-1]["engines"].values())
        with urllib.request.urlopen(f"http://{addresses[1]}/health", timeout=5) as reply:
            assert reply.headers["x-simulated-engine"] == "engine-2"
        taken = addresses[0].rsplit(":", 1)[1]
        second = subprocess.run(
            [*command, "--port", taken], capture_output=True, text=True, timeout=20, check=False
        )
        assert second.returncode == 1
        assert f"cannot listen on 127.0.0.1:{taken}" in second.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        process.wait()

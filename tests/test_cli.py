"""The `extproc` command, and `extproc check`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from extproc import __version__
from extproc.cli import main
from tests.certificates import DAY, Authority, Mounted

GOOD = """\
listen: unix:/run/x.sock
metrics: null
pools:
- name: llama
  match: {route: "llm-*"}
  endpoints: {static: ["127.0.0.1:8001", "[::1]:8002"]}
- name: qwen
  match: {route: "*", models: ["q*"]}
  strategy: RANDOM
  shed: {maxInFlight: 20}
  endpoints: {file: eps.yaml}
"""
POOL = "pools: [{name: a, endpoints: {static: ['10.0.0.1:80']}}]\n"
BAD = "listen: 9002\npools:\n- name: llama\n  strateggy: RANDOM\n  endpoints: {static: [gpu-1]}\n"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def good(tmp_path: Path) -> Path:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    (tmp_path / "eps.yaml").write_text("['127.0.0.1:8001', '127.0.0.1:8003', '127.0.0.1:8004']\n")
    return file


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    return file


def test_a_misspelt_command_is_answered_with_the_nearest() -> None:
    said = run("chekc", "pools.yaml")
    assert said.exit_code == 2
    assert "No such command 'chekc'. Did you mean 'check'?" in said.output
    assert "Did you mean" not in run("banana").output


def test_ctrl_c_ends_a_command_with_130(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cluster = {"server": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        kubeconfig = tmp_path / "config"
        named = {"clusters": [{"name": "a", "cluster": cluster}], "users": [{"name": "a", "user": {}}]}
        contexts = [{"name": "a", "context": {"cluster": "a", "user": "a"}}]
        kubeconfig.write_text(json.dumps({**named, "contexts": contexts, "current-context": "a"}))
        doctor = subprocess.Popen(
            [sys.executable, "-m", "extproc", "doctor"],
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stderr=subprocess.PIPE,
            text=True,
        )
        asked, _ = silent.accept()
        with asked:
            doctor.send_signal(signal.SIGINT)
            _, err = doctor.communicate(timeout=30)
    assert (doctor.returncode, err.splitlines()[-1]) == (130, "Stopped.")


def test_version_and_help() -> None:
    assert run("--version").output.strip() == f"extproc, version {__version__}"
    said = run("--help")
    assert said.exit_code == 0
    for command in ("check", "demo", "envoy-config", "serve", "simulate"):
        assert command in said.output


def test_an_unknown_command_is_refused() -> None:
    said = run("chekc")
    assert said.exit_code == 2
    assert "chekc" in said.stderr


def test_checking_loads_neither_grpc_nor_plots(good: Path) -> None:
    code = (
        "import sys\n"
        "from extproc.cli import main\n"
        f"main(['check', {str(good)!r}], standalone_mode=False)\n"
        "print(sorted({'grpc', 'matplotlib', 'aiohttp'} & set(sys.modules)))\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.splitlines()[-1] == "[]"


class TestCheck:
    def test_a_valid_file_is_summed_up(self, good: Path) -> None:
        said = run("check", good)
        assert said.exit_code == 0
        assert said.stderr == ""
        rows = {row[0]: row[1:] for row in map(str.split, said.stdout.splitlines()) if row}
        assert said.stdout.startswith(f"{good}: valid\n")
        assert rows["ext_proc"] == ["unix:/run/x.sock"]
        assert rows["metrics"] == ["off"]
        assert " ".join(rows["llama"]) == "route llm-* PREFIX_AWARE 256 2"
        assert " ".join(rows["qwen"]) == (
            f"route * and models q* RANDOM -; 429 at 20 3 in {good.parent}/eps.yaml"
        )

    def test_an_endpoints_file_that_is_not_there_yet_is_a_warning(self, good: Path) -> None:
        (good.parent / "eps.yaml").unlink()
        said = run("check", good)
        assert said.exit_code == 0
        assert f"unknown in {good.parent}/eps.yaml" in said.stdout
        assert said.stderr.startswith("warning: pool qwen: ")

    def test_a_bad_file_ends_with_2_and_every_problem_on_standard_error(self, bad: Path) -> None:
        said = run("check", bad)
        assert said.exit_code == 2
        assert said.stdout == ""
        assert [line.split(": ")[:2] for line in said.stderr.splitlines()] == [
            [f"{bad}:1", "listen"],
            [f"{bad}:4", "pools[0].strateggy"],
            [f"{bad}:5", "pools[0].endpoints.static[0]"],
        ]

    def test_a_missing_file_ends_with_2(self, tmp_path: Path) -> None:
        said = run("check", tmp_path / "no.yaml")
        assert (said.exit_code, said.stdout, said.stderr) == (2, "", f"{tmp_path}/no.yaml: no such file\n")

    def test_a_certificate_that_cannot_be_served_is_a_warning_that_says_why(self, tmp_path: Path) -> None:
        files = Mounted(tmp_path, Authority().issue())
        path = tmp_path / "router.yaml"
        path.write_text("tls: {cert: tls.crt, key: tls.key}\n" + POOL)
        said = run("check", path)
        assert (said.exit_code, said.stderr) == (0, "")
        assert "ext_proc  127.0.0.1:9002 (TLS)\n" in said.stdout
        files.swap(Authority().issue(begins=-2 * DAY, ends=-DAY))
        said = run("check", path)
        assert said.exit_code == 0
        assert said.stderr.startswith(f"warning: tls.cert: {tmp_path}/tls.crt: expired on ")
        assert json.loads(run("check", "--json", path).stdout)["warnings"] == [
            said.stderr.removeprefix("warning: ").strip()
        ]

    def test_a_request_log_that_cannot_be_written_is_a_warning_that_names_what_lacks(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "router.yaml"
        path.write_text("requestLog: {path: logs/requests.jsonl, secretFile: secret}\n" + POOL)
        said = run("check", path)
        assert said.exit_code == 0
        assert said.stderr.splitlines() == [
            f"warning: requestLog.path: {tmp_path}/logs: no such directory; make it, or nothing is logged",
            f"warning: requestLog.secretFile: {tmp_path}/secret: No such file or directory",
        ]
        (tmp_path / "logs").mkdir()
        (tmp_path / "secret").write_text("0123456789abcdef")
        assert run("check", path).stderr == ""

    def test_endpoints_in_kubernetes_are_told_by_where_they_come_from(self, tmp_path: Path) -> None:
        path = tmp_path / "router.yaml"
        path.write_text("pools: [{name: a, endpoints: {inferencePool: {name: llama}}}]\n")
        assert "ready pods of InferencePool llama" in run("check", path).stdout
        path.write_text("pools: [{name: a, endpoints: {pods: {selector: app=x, ports: [80]}}}]\n")
        said = run("check", path)
        assert "ready pods with app=x" in said.stdout
        path.write_text(
            "pools: [{name: a, endpoints: {service: {name: llama, port: http}},"
            " settingsFrom: {configMap: {name: llama-routing}}}]\n"
        )
        said = run("check", path)
        assert "ready endpoints of Service llama, port http" in said.stdout
        assert "settings of pool a in ConfigMap llama-routing[settings.yaml] go before these" in said.stdout
        assert said.stderr == ""

    def test_exit_codes_are_documented(self) -> None:
        said = " ".join(run("check", "--help").output.split())
        assert "Exits 0 if the file is valid; 2 if it is not" in said

    def test_json_of_a_valid_file_holds_what_would_run(self, good: Path) -> None:
        said = run("check", "--json", good)
        answer = json.loads(said.stdout)
        assert said.exit_code == 0
        assert (answer["valid"], answer["warnings"]) == (True, [])
        assert answer["endpoints"] == {"llama": 2, "qwen": 3}
        assert answer["config"]["pools"][0]["concurrencyThreshold"] == 256
        assert answer["config"]["listen"] == "unix:/run/x.sock"

    def test_json_of_a_bad_file_holds_every_problem(self, bad: Path) -> None:
        said = run("check", "--json", bad)
        answer = json.loads(said.stdout)
        assert said.exit_code == 2
        assert answer["valid"] is False
        assert answer["problems"][1] == {
            "path": "pools[0].strateggy",
            "line": 4,
            "column": None,
            "message": "unknown key; did you mean strategy?",
        }

    def test_the_keys_are_listed_without_a_file(self) -> None:
        said = run("check", "--keys")
        assert said.exit_code == 0
        assert "| `pools[].concurrencyThreshold` | a whole number from 1 to 1024 | `256` |" in said.stdout

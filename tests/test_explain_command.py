"""`extproc explain`: with a configuration, without, and asking a router that serves."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from extproc.cli import main
from extproc.config import parse
from extproc.explain import MAX_BODY_BYTES
from extproc.server import SERVICE
from tests.test_serve import SERVE, Serving, configuration, free_ports, serving

CANARY = "correct horse battery staple"
ENDPOINTS = [f"10.0.0.{number}:80" for number in range(1, 5)]
STATIC = json.dumps({"static": ENDPOINTS})
LINE = "extproc explain: "


def chat(*turns: str, system: str = "") -> bytes:
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[at % 2], "content": turn} for at, turn in enumerate(turns)]
    return json.dumps({"model": "llama", "messages": messages}).encode()


BODY = chat(f"{CANARY} " * 200)


def run(body: bytes, *arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["explain", *map(str, arguments)], input=body)


def explained(body: bytes, *arguments: str | Path) -> dict[str, Any]:
    said = run(body, "--json", *arguments)
    assert (said.exit_code, said.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(said.stdout)
    return answer


def failed(said: Result) -> str:
    """The one line that says why there is no explanation."""
    assert (said.exit_code, said.stdout) == (2, "")
    (line,) = said.stderr.splitlines()
    assert line.startswith(LINE)
    return line.removeprefix(LINE)


def pools(directory: Path, text: str) -> Path:
    path = directory / "router.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return pools(tmp_path, f"pools: [{{name: llama, endpoints: {STATIC}}}]\n")


class TestWithoutAConfiguration:
    def test_only_the_prompt_is_explained(self) -> None:
        said = run(BODY)
        assert said.exit_code == 0
        assert said.stdout.startswith(f"request  chat, {len(BODY):,} bytes\nscope    model llama, no adapter")
        assert "pool " not in said.stdout
        assert explained(BODY)["pool"] is None

    def test_the_api_is_that_of_the_path_if_there_is_one(self) -> None:
        body = b'{"model": "m", "prompt": "x"}'
        assert explained(body)["prompt"]["api"] == "completions"
        assert explained(body, "--path", "/api/generate")["prompt"]["api"] == "ollama-generate"

    def test_a_cut_body_is_said_to_be_one(self) -> None:
        whole, cut = b"some text", explained(b"some text", "--incomplete")
        assert [one["closed"] for one in explained(whole)["prompt"]["content"]] == [True]
        assert [one["closed"] for one in cut["prompt"]["content"]] == [False]

    def test_a_compressed_body_is_read(self) -> None:
        import zlib

        packed = zlib.compress(BODY)
        assert explained(packed, "--content-encoding", "deflate")["prompt"]["api"] == "chat"
        assert explained(packed)["prompt"] is None

    @pytest.mark.parametrize("encoding", ["zip", "gzip"])
    def test_one_that_is_not_compressed_so_is_said_not_to_be(self, encoding: str) -> None:
        answer = explained(BODY, "--content-encoding", encoding)
        assert answer["prompt"] is None
        assert "cannot be decoded as its Content-Encoding says" in answer["notes"][0]


class TestWithAConfiguration:
    def test_its_endpoints_are_at_rest_and_that_is_said(self, file: Path) -> None:
        answer = explained(BODY, "--config", file)
        assert [one["address"] for one in answer["pool"]["endpoints"]] == ENDPOINTS
        assert {(one["in_flight"], one["cached"]) for one in answer["pool"]["endpoints"]} == {(0, 0)}
        assert answer["pool"]["first"] in ENDPOINTS
        assert sorted([answer["pool"]["first"], *answer["pool"]["retry"]]) == ENDPOINTS
        assert answer["notes"][-1].startswith("No router was asked: nothing is in flight here")
        assert "No router was asked" in run(BODY, "--config", file).stdout

    def test_of_a_prefix_the_home_is_that_of_every_router(self, tmp_path: Path) -> None:
        settings = f"pools: [{{name: llama, prefixLength: 1024, endpoints: {STATIC}}}]\n"
        first = {explained(BODY, "--config", pools(tmp_path, settings))["pool"]["first"] for _ in range(3)}
        assert len(first) == 1

    def test_endpoints_come_from_a_file_too(self, tmp_path: Path) -> None:
        path = pools(tmp_path, "pools: [{name: llama, endpoints: {file: eps.yaml}}]\n")
        (tmp_path / "eps.yaml").write_text("- 10.0.0.9:80\n")
        assert explained(BODY, "--config", path)["pool"]["first"] == "10.0.0.9:80"
        (tmp_path / "eps.yaml").unlink()
        assert failed(run(BODY, "--config", path)) == (
            f"pool llama: {tmp_path}/eps.yaml: No such file or directory"
        )

    def test_endpoints_in_kubernetes_are_known_to_a_running_router_only(self, tmp_path: Path) -> None:
        path = pools(tmp_path, "pools: [{name: llama, endpoints: {inferencePool: {name: llama}}}]\n")
        assert failed(run(BODY, "--config", path)).endswith("only a running router reads: use --url")

    def test_a_pool_is_named_where_there_are_several(self, tmp_path: Path) -> None:
        path = pools(
            tmp_path,
            f"pools:\n- {{name: a, match: {{route: x}}, endpoints: {STATIC}}}\n"
            f"- {{name: b, match: {{route: y}}, strategy: RANDOM, endpoints: {{file: not-there.yaml}}}}\n",
        )
        assert explained(BODY, "--config", path, "--pool", "a")["pool"]["name"] == "a"
        by_route = explained(BODY, "--config", path, "--route", "x", "--subset", ENDPOINTS[1])
        assert by_route["pool"]["name"] == "a"
        assert [one["address"] for one in by_route["pool"]["endpoints"]] == [ENDPOINTS[1]]
        assert failed(run(BODY, "--config", path)).endswith("say which; there are: a, b")
        assert failed(run(BODY, "--config", path, "--pool", "c")) == ("pool 'c' is unknown; there are: a, b")
        assert failed(run(BODY, "--config", path, "--pool", "b")).startswith("pool b: ")

    def test_a_bad_configuration_ends_with_2_and_its_problems(self, tmp_path: Path) -> None:
        path = pools(tmp_path, "pools: [{name: a, strateg: RANDOM, endpoints: {static: ['10.0.0.1:80']}}]\n")
        said = run(BODY, "--config", path)
        assert (said.exit_code, said.stdout) == (2, "")
        assert said.stderr == f"{path}:1: pools[0].strateg: unknown key; did you mean strategy?\n"
        assert run(BODY, "--config", tmp_path / "no.yaml").exit_code == 2


class TestTheText:
    @pytest.mark.parametrize("strategy", ["PREFIX_AWARE", "LEAST_OUTSTANDING_REQUESTS", "RANDOM"])
    @pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
    def test_of_the_prompt_is_shown_to_who_asks_only(
        self, tmp_path: Path, strategy: str, form: list[str]
    ) -> None:
        path = pools(tmp_path, f"pools: [{{name: llama, strategy: {strategy}, endpoints: {STATIC}}}]\n")
        said = run(BODY, "--config", path, *form)
        assert said.exit_code == 0
        assert not any(word in said.output for word in CANARY.split())
        assert CANARY in run(BODY, "--config", path, "--show-text", *form).output


class TestWhatIsNoRequest:
    def test_an_empty_input_is_refused(self) -> None:
        assert failed(run(b"")).startswith("standard input is empty")

    def test_a_body_that_is_too_large_is_refused(self) -> None:
        assert failed(run(b" " * (MAX_BODY_BYTES + 1))) == "the body has more than 16777216 bytes"

    def test_a_terminal_is_told_how_to_use_it(self) -> None:
        ours, theirs = os.openpty()
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "extproc", "explain"],
                stdin=theirs,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            os.close(ours)
            os.close(theirs)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr == (
            "extproc explain: the request's body is read from standard input: extproc explain < body.json\n"
        )

    def test_options_that_make_no_sense_together_are_refused(self, file: Path) -> None:
        assert failed(run(BODY, "--config", file, "--url", "http://127.0.0.1:1")).startswith("--config and")
        for option in ("--pool", "--route", "--subset"):
            assert failed(run(BODY, option, "a")).startswith(f"{option} needs --config")


class TestARouterThatIsNotThere:
    @pytest.mark.parametrize(
        "url", ["127.0.0.1:9005", "https://127.0.0.1:9005", "http://", "http://h/explain", "http://[::1:1"]
    )
    def test_a_url_is_host_and_port(self, url: str) -> None:
        assert failed(run(BODY, "--url", url)).startswith(f"--url {url}: must be http://HOST:PORT")

    def test_nobody_listens(self) -> None:
        (port,) = free_ports(1)
        url = f"http://127.0.0.1:{port}"
        assert failed(run(BODY, "--url", url)).startswith(f"{url} cannot be reached: Connection refused")

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", "answers with HTTP 404"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "answers in another form"),
            (b"SSH-2.0-OpenSSH_9.2p1\r\n", "does not answer in HTTP"),
        ],
    )
    def test_somebody_else_does(self, answer: bytes, said: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"http://127.0.0.1:{server.getsockname()[1]}"

            def reply() -> None:
                connection, _ = server.accept()
                with connection:
                    received = b""
                    while not received.endswith(BODY):
                        received += connection.recv(65536)
                    connection.sendall(answer)

            thread = threading.Thread(target=reply)
            thread.start()
            assert failed(run(BODY, "--url", url)).startswith(f"{url} {said}")
            thread.join(20)


class Router:
    """`extproc serve` with an admin address, and a client of it."""

    def __init__(self, directory: Path, strategy: str) -> None:
        self.ports = free_ports(4)
        self.url = f"http://127.0.0.1:{self.ports[3]}"
        pool = f"name: llama, engineMetrics: false, endpoints: {STATIC}, {strategy}"
        text = configuration(self.ports, f"pools: [{{{pool}}}]\n")
        self.path = pools(directory, f"admin: 127.0.0.1:{self.ports[3]}\n{text}")

    @contextmanager
    def running(self) -> Iterator[Serving]:
        with serving(self.path, self.ports) as self.process:
            yield self.process

    def ask(self, *bodies: bytes) -> list[list[str]]:
        """Where each goes, and where it would be retried; no request is in flight afterwards."""
        picks = []
        with grpc.insecure_channel(f"127.0.0.1:{self.ports[0]}") as channel:
            call = channel.stream_stream(
                f"/{SERVICE}/Process",
                request_serializer=ProcessingRequest.SerializeToString,
                response_deserializer=ProcessingResponse.FromString,
            )
            for body in bodies:
                message = ProcessingRequest()
                message.request_body.body = body
                message.request_body.end_of_stream = True
                (reply,) = call(iter([message]))
                (pin,) = reply.request_body.response.header_mutation.set_headers
                picks.append(pin.header.raw_value.decode().split(","))
                self.process.until(lambda: self.process.metric("extproc_streams") == 0)
        return picks

    def metrics(self) -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[2]}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return [line for line in lines if line.startswith("extproc_")]


STRATEGIES = [
    "strategy: PREFIX_AWARE",
    "prefixLength: 1024",
    "strategy: LEAST_OUTSTANDING_REQUESTS",
    "strategy: RANDOM",
]


class TestARouterThatServes:
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_says_what_it_then_does_and_is_not_changed_by_being_asked(
        self, tmp_path: Path, strategy: str
    ) -> None:
        router = Router(tmp_path, strategy)
        system = "You are helpful. " * 100
        with router.running():
            router.ask(*(chat(f"{number} tell me " * 300, system=system) for number in range(20)))
            for number in (3, 7, 40):
                turn = chat(f"{number} tell me " * 300, "Once", "And then? " * 50, system=system)
                before = router.metrics()
                said = explained(turn, "--url", router.url)
                for _ in range(3):
                    other = explained(
                        chat(f"{number + 1} tell me " * 300, system=system), "--url", router.url
                    )
                    assert other["pool"]["first"] in ENDPOINTS
                assert explained(turn, "--url", router.url)["pool"]["first"] == said["pool"]["first"]
                assert router.metrics() == before
                assert router.ask(turn) == [[said["pool"]["first"], *said["pool"]["retry"]]]
                assert router.metrics() != before

    def test_knows_what_was_sent_where(self, tmp_path: Path) -> None:
        router = Router(tmp_path, "strategy: PREFIX_AWARE")
        with router.running() as process:
            ((home, *_),) = router.ask(chat("tell me " * 500))
            answer = explained(chat("tell me " * 500, "Once", "And then?"), "--url", router.url)
            cached = {one["address"]: one["cached"] for one in answer["pool"]["endpoints"]}
            assert cached == {address: 1000 if address == home else 0 for address in ENDPOINTS}
            assert answer["pool"]["reason"] == "prefix"
            assert answer["why"][0].startswith(f"{home} was sent 1,000 of the prompt's 1,003 tokens before")
            assert answer["notes"] == []
            said = run(BODY, "--url", router.url, "--pool", "other")
            assert failed(said) == "pool 'other' is unknown; there are: llama"
            process.process.send_signal(signal.SIGTERM)
            process.wait_for("stopped")
            assert process.process.wait(20) == 0

    def test_keeps_and_logs_no_text_and_answers_none_unasked(self, tmp_path: Path) -> None:
        router = Router(tmp_path, "strategy: PREFIX_AWARE")
        with router.running() as process:
            for arguments in ([], ["--json"]):
                assert CANARY.split()[0] not in run(BODY, "--url", router.url, *arguments).output
                assert CANARY in run(BODY, "--url", router.url, "--show-text", *arguments).output
            process.process.send_signal(signal.SIGTERM)
            assert process.process.stderr is not None
            log = process.process.stderr.read()
            assert '"stopped"' in log
            assert CANARY.split()[0] not in log

    def test_that_cannot_listen_there_ends_with_1_and_names_the_address(self, tmp_path: Path) -> None:
        router = Router(tmp_path, "strategy: RANDOM")
        with socket.create_server(("127.0.0.1", router.ports[3])):
            ended = subprocess.run(
                [*SERVE, str(router.path)], capture_output=True, text=True, timeout=60, check=False
            )
        assert ended.returncode == 1
        assert f"admin cannot listen on 127.0.0.1:{router.ports[3]}: another process" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_the_configuration_in_its_documentation_is_valid() -> None:
    page = (Path(__file__).parent.parent / "docs" / "explain.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert str(parse(example, "docs/explain.md").admin) == "127.0.0.1:9005"

"""The log of a router that serves: complete, bounded, without text, and never in the way of a request."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from prometheus_client import CollectorRegistry

from extproc import logs
from extproc.config import LogConfig, RequestLogConfig
from extproc.metrics import Metrics
from extproc.picker import Picked
from extproc.prefix import BlockKeys
from extproc.replay import log
from extproc.request_log import MOST_WAITING_KEYS, RequestLog
from extproc.server import SERVICE
from tests.test_serve import Serving, configuration, free_ports, serving

CANARY = "correct horse battery staple"
RECORDS = "extproc_request_log_records_total"


class Router:
    """`extproc serve` with a request log, and a client of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "router.yaml"
        self.ports = free_ports(3)
        self.log = directory / "requests.jsonl"

    def configure(self, strategy: str = "PREFIX_AWARE", **settings: Any) -> None:
        wanted = {"path": str(self.log), **settings}
        endpoints = [f"10.0.0.{number}:80" for number in range(1, 5)]
        pool = {"name": "llama", "strategy": strategy, "endpoints": {"static": endpoints}}
        text = configuration(self.ports, f"pools: {json.dumps([pool])}\n")
        if wanted["path"]:
            text += f"requestLog: {json.dumps(wanted)}\n"
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)

    @contextmanager
    def running(self) -> Iterator[Serving]:
        with serving(self.path, self.ports) as router:
            yield router

    def ask(self, *bodies: bytes) -> None:
        """Have a pick made for each body."""
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
                assert reply.request_body.response.header_mutation.set_headers  # it was pinned

    def records(self, path: Path | None = None) -> list[log.Record]:
        return [log.parse(line) for line in (path or self.log).read_bytes().splitlines()]


@pytest.fixture
def router(tmp_path: Path) -> Router:
    return Router(tmp_path)


def stop(process: Serving) -> None:
    process.process.send_signal(signal.SIGTERM)
    process.wait_for("stopped")
    assert process.process.wait(20) == 0


def chat(*contents: str) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": text} for text in contents]}
    ).encode()


def written(process: Serving) -> float:
    return process.metric(RECORDS + '{result="written"}')


def failed(process: Serving) -> float:
    return process.metric(RECORDS + '{result="failed"}')


class TestARouterThatServes:
    def test_what_it_served_can_be_replayed_and_holds_no_text(self, router: Router) -> None:
        router.configure()
        system = f"{CANARY} " * 200
        began = time.time()
        with router.running() as process:
            for turn in range(1, 5):
                router.ask(
                    *(
                        chat(system, *(f"{CANARY} {user} {n} " * 20 for n in range(turn)))
                        for user in range(15)
                    )
                )
            stop(process)
        records = router.records()
        assert len(records) == 60
        assert {record.pool for record in records} == {"llama"}
        assert all(began - 5 < record.at < time.time() + 5 for record in records)
        assert [record.at for record in records] == sorted(record.at for record in records)
        assert stat.S_IMODE(router.log.stat().st_mode) == 0o600
        text = router.log.read_bytes()
        assert not any(word.encode() in text for word in (CANARY, *CANARY.split()))

        ran = subprocess.run(
            [sys.executable, "-m", "extproc", "replay", str(router.log), "--engines", "4", "--json"],
            capture_output=True,
            timeout=120,
            check=True,
        )
        report = json.loads(ran.stdout)
        assert report["trace"]["requests"] == 60
        assert report["trace"]["lines_left_out"] == 0
        assert report["worth"]["reusable"] > 0.8
        assert report["policies"]["PREFIX_AWARE"]["hit_rate"] > report["policies"]["RANDOM"]["hit_rate"] > 0

    @pytest.mark.parametrize("strategy", ["RANDOM", "LEAST_OUTSTANDING_REQUESTS"])
    def test_prompts_are_logged_whatever_the_strategy_so_that_another_can_be_weighed(
        self, router: Router, strategy: str
    ) -> None:
        router.configure(strategy)
        with router.running() as process:
            router.ask(chat("the same beginning " * 50 + "one"), chat("the same beginning " * 50 + "two"))
            stop(process)
        one, two = (record.keys.keys for record in router.records())
        assert one[:4] == two[:4]
        assert one[-1] != two[-1]

    def test_a_reload_opens_moves_and_closes_the_log_and_loses_nothing(self, router: Router) -> None:
        router.configure(path="")
        other = router.directory / "other.jsonl"
        reloads = 'extproc_config_reloads_total{result="success"}'
        with router.running() as process:
            router.ask(chat("a"))
            for count, path in enumerate((router.log, other, ""), 1):
                router.configure(path=str(path))
                process.until(lambda count=count: process.metric(reloads) == count)  # type: ignore[misc]
                router.ask(*[chat("b" * count)] * count)
            stop(process)
        assert len(router.records()) == 1
        assert len(router.records(other)) == 2

    def test_files_rotate_under_load_and_no_line_is_lost_before_the_oldest_goes(self, router: Router) -> None:
        router.configure(maxBytes=1 << 20, files=3)
        # A key for each message: 16 KB of log per request.
        body = chat(*(str(number) for number in range(1000)))
        with router.running() as process:
            router.ask(*[body] * 250)
            process.until(lambda: written(process) == 250)
            stop(process)
        files = [router.log, *(router.log.with_name(f"requests.jsonl.{number}") for number in (1, 2))]
        assert set(router.directory.glob("requests.jsonl*")) == set(files)
        assert all(file.stat().st_size <= 1 << 20 for file in files)
        records = [record for file in reversed(files) for record in router.records(file)]
        assert 2 * 60 < len(records) < 250
        assert [record.at for record in records] == sorted(record.at for record in records)
        assert len({record.at for record in records}) == len(records)

    def test_a_full_disk_costs_records_and_no_request_and_is_said_once(self, router: Router) -> None:
        router.configure(path="/dev/full")
        with router.running() as process:
            router.ask(chat("one"))
            said = process.wait_for("request log not written; records are lost")
            assert said["reason"] == os.strerror(28)
            assert said["path"] == "/dev/full"
            router.ask(chat("two"), chat("three"))
            process.until(lambda: failed(process) == 3)
            process.process.send_signal(signal.SIGTERM)
            log_of_process = process.process.stderr
            assert log_of_process is not None
            assert "request log not written" not in log_of_process.read()


def picked(number: int, keys: int = 2) -> Picked:
    chain = BlockKeys([number * keys + one for one in range(keys)], [64 * (one + 1) for one in range(keys)])
    return Picked("llama", chain, "10.0.0.1:80", time.monotonic(), 64 * keys)


class Log:
    """The log itself, fed by hand."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "requests.jsonl"
        self.stream = StringIO()
        self.metrics = Metrics(CollectorRegistry())
        self.requests = RequestLog(self.metrics.request_log, random.Random(1))

    def apply(self, **settings: Any) -> None:
        self.requests.apply(RequestLogConfig(path=self.path, **settings))

    def count(self, result: str) -> float:
        return self.metrics.registry.get_sample_value(RECORDS, {"result": result}) or 0.0

    def until(self, result: str, count: int) -> None:
        deadline = time.monotonic() + 20
        while self.count(result) != count:
            assert time.monotonic() < deadline, f"{self.count(result)} {result}, not {count}"
            time.sleep(0.01)

    def lengths(self) -> list[int]:
        return [log.parse(line).length for line in self.path.read_bytes().splitlines()]

    def said(self) -> list[tuple[str, str | None]]:
        """Events logged, each with its reason."""
        entries = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [(entry["event"], entry.get("reason")) for entry in entries]


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[Log]:
    before = set(threading.enumerate())
    made = Log(tmp_path)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.set_up(LogConfig(format="json"), made.stream)
    yield made
    made.requests.stop(10)
    assert set(threading.enumerate()) <= before
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)
    structlog.reset_defaults()


class TestTheLogItself:
    def test_all_that_was_told_is_written_in_order_when_it_stops(self, by_hand: Log) -> None:
        by_hand.apply()
        for number in range(1, 3001):
            by_hand.requests.tell(picked(number, keys=number % 7))
        by_hand.requests.stop(30)
        assert by_hand.lengths() == [64 * (number % 7) for number in range(1, 3001)]
        assert by_hand.count("written") == 3000

    def test_a_sample_is_about_its_share_of_the_requests(self, by_hand: Log) -> None:
        by_hand.apply(sample=0.25)
        for number in range(4000):
            by_hand.requests.tell(picked(number))
        by_hand.requests.stop(30)
        assert 850 < len(by_hand.lengths()) < 1150

    def test_what_waited_under_the_settings_before_is_written_under_these(
        self, by_hand: Log, tmp_path: Path
    ) -> None:
        by_hand.apply()
        by_hand.requests.tell(picked(1, keys=3))
        by_hand.apply(max_bytes=1 << 21)
        by_hand.requests.tell(picked(2, keys=4))
        by_hand.requests.stop(30)
        assert by_hand.lengths() == [3 * 64, 4 * 64]

    def test_a_directory_that_comes_late_is_used_from_then_on(self, by_hand: Log) -> None:
        by_hand.path = by_hand.path.parent / "late" / "requests.jsonl"
        by_hand.apply()
        by_hand.requests.tell(picked(1, keys=1))
        by_hand.until("failed", 1)
        by_hand.path.parent.mkdir()
        by_hand.requests.tell(picked(2, keys=2))
        by_hand.until("written", 1)
        assert by_hand.lengths() == [2 * 64]
        assert by_hand.said() == [
            ("requests are logged", None),
            ("request log not written; records are lost", "No such file or directory"),
            ("request log written again", None),
        ]

    def test_logs_with_one_secret_have_the_same_keys_and_without_they_do_not(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("0123456789abcdef0123456789abcdef\n")
        found = []
        for name, settings in (("a", {"secret_file": secret}), ("b", {"secret_file": secret}), ("c", {})):
            (tmp_path / name).mkdir()
            made = Log(tmp_path / name)
            made.apply(**settings)
            made.requests.tell(picked(1, keys=5))
            made.requests.stop(10)
            found.append(log.parse(made.path.read_bytes()).keys.keys)
        assert found[0] == found[1]
        assert not set(found[0]) & set(found[2])

    def test_without_its_secret_nothing_is_written_until_it_is_there(
        self, by_hand: Log, tmp_path: Path
    ) -> None:
        secret = tmp_path / "secret"
        by_hand.apply(secret_file=secret)
        by_hand.requests.tell(picked(1))
        by_hand.until("failed", 1)
        secret.write_text("too short")
        by_hand.requests.tell(picked(2))
        by_hand.until("failed", 2)
        assert not by_hand.path.exists()
        secret.write_text("long enough for a secret")
        by_hand.requests.tell(picked(3, keys=3))
        by_hand.until("written", 1)
        assert by_hand.lengths() == [3 * 64]
        assert [reason for _, reason in by_hand.said() if reason] == [
            f"{secret}: No such file or directory",
            f"{secret}: must have at least 16 bytes, has 9",
        ]

    def test_nothing_is_kept_of_requests_while_it_is_off(self, by_hand: Log) -> None:
        by_hand.requests.tell(picked(1))
        by_hand.apply()
        by_hand.requests.apply(None)
        by_hand.requests.tell(picked(2))
        by_hand.requests.stop(30)
        assert not by_hand.path.exists()

    def test_while_the_disk_hangs_what_waits_is_bounded_the_rest_counted_and_nobody_waits(
        self, by_hand: Log, tmp_path: Path
    ) -> None:
        pipe = tmp_path / "secret"
        os.mkfifo(pipe)  # to read it waits for somebody who writes, as a hanging disk does
        by_hand.apply(secret_file=pipe)
        fit = MOST_WAITING_KEYS // 1025
        took = longest(lambda: by_hand.requests.tell(picked(1, keys=1024)), times=fit + 50)
        assert by_hand.count("dropped") == 50
        assert took < 5  # and not until somebody writes
        began = time.monotonic()
        by_hand.requests.stop(0.2)
        assert time.monotonic() - began < 5
        pipe.write_bytes(b"a secret of some length")
        by_hand.requests.stop(60)
        assert by_hand.count("written") == fit


def longest(act: Callable[[], None], times: int) -> float:
    found = 0.0
    for _ in range(times):
        began = time.monotonic()
        act()
        found = max(found, time.monotonic() - began)
    return found

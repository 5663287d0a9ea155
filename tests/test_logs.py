"""What a log line looks like, and what never stands in one."""

from __future__ import annotations

import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import structlog

from extproc.config import LogConfig
from extproc.logs import set_up

CANARY = "the user's prompt"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def logged(config: LogConfig | None = None) -> io.StringIO:
    stream = io.StringIO()
    set_up(config or LogConfig(format="json"), stream)
    return stream


def test_json_is_one_object_a_line_with_time_level_and_event() -> None:
    stream = logged()
    structlog.get_logger("extproc.server").info("started", listen="127.0.0.1:9002", pools=2)
    (line,) = lines(stream)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    at = datetime.fromisoformat(str(line.pop("timestamp")))
    assert at.tzinfo is not None
    assert abs((datetime.now(UTC) - at).total_seconds()) < 60
    assert line == {
        "level": "info",
        "logger": "extproc.server",
        "event": "started",
        "listen": "127.0.0.1:9002",
        "pools": 2,
    }


def test_a_line_break_in_a_value_does_not_break_the_line() -> None:
    stream = logged()
    structlog.get_logger("x").error("refused", reason="a\nb")
    assert lines(stream)[0]["reason"] == "a\nb"


def test_the_loggers_of_libraries_take_the_same_way() -> None:
    stream = logged()
    logging.getLogger("grpc._server").warning("%s failed", "a call", extra={"port": 1})
    (line,) = lines(stream)
    assert (line["logger"], line["level"], line["event"], line["port"]) == (
        "grpc._server",
        "warning",
        "a call failed",
        1,
    )


def test_what_libraries_say_of_themselves_stands_in_no_debug_log() -> None:
    stream = logged(LogConfig(format="json", level="debug"))
    for library in ("asyncio", "grpc._cython.cygrpc", "kubernetes_asyncio.client.rest"):
        logging.getLogger(library).debug("response body: %s", CANARY)
    structlog.get_logger("extproc.server").debug("picked")
    assert [line["event"] for line in lines(stream)] == ["picked"]


def test_warnings_of_python_take_the_same_way() -> None:
    stream = logged()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert [line["logger"] for line in lines(stream)] == ["py.warnings"]


def test_auto_is_text_on_a_terminal_and_json_elsewhere() -> None:
    terminal = Terminal()
    set_up(LogConfig(), terminal)
    structlog.get_logger("x").info("started")
    assert not terminal.getvalue().startswith("{")
    stream = logged(LogConfig())
    structlog.get_logger("x").info("started")
    assert lines(stream)[0]["event"] == "started"


def test_text_in_a_file_has_no_colours() -> None:
    stream = logged(LogConfig(format="console"))
    structlog.get_logger("x").info("started", pools=2)
    assert "started" in stream.getvalue()
    assert "pools=2" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_what_is_less_severe_than_the_level_is_left_out() -> None:
    stream = logged(LogConfig(format="json", level="warning"))
    log = structlog.get_logger("x")
    log.info("a")
    log.warning("b")
    logging.getLogger("y").info("c")
    assert [line["event"] for line in lines(stream)] == ["b"]


def test_a_reload_changes_the_level_of_loggers_that_exist_and_repeats_no_line() -> None:
    stream = logged(LogConfig(format="json", level="warning"))
    log = structlog.get_logger("x")
    log.info("before")
    set_up(LogConfig(format="json", level="debug"), stream)
    log.debug("after")
    assert [line["event"] for line in lines(stream)] == ["after"]


@pytest.mark.parametrize("format", ["json", "console"])
def test_a_traceback_names_lines_and_never_the_values_of_variables(format: str) -> None:
    stream = logged(LogConfig.model_validate({"format": format}))

    def read(body: str) -> int:
        return len(body) // 0

    try:
        read(CANARY + "!")
    except ZeroDivisionError:
        structlog.get_logger("x").exception("stream failed")
        logging.getLogger("asyncio").error("stream failed", exc_info=sys.exc_info())
    assert stream.getvalue().count("ZeroDivisionError") >= 2
    assert "in read" in stream.getvalue()
    assert CANARY not in stream.getvalue()


@pytest.mark.parametrize("format", ["json", "console"])
def test_bytes_are_told_by_their_length_only(format: str) -> None:
    stream = logged(LogConfig.model_validate({"format": format}))
    structlog.get_logger("x").info("read", body=CANARY.encode(), part=memoryview(CANARY.encode()))
    assert f"<{len(CANARY)} bytes>" in stream.getvalue()
    assert CANARY not in stream.getvalue()

"""Logging: one pipeline for structlog and for the standard library's loggers (grpc, asyncio and others).

No log line holds a request's text. Events are fixed words and their fields numbers, names and addresses;
beyond that this pipeline prints bytes only by their length, and tracebacks without local variables.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import IO, Any

import orjson
import structlog
from structlog.typing import Processor

from extproc.config import LogConfig

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_TALKATIVE = ("asyncio", "grpc", "kubernetes_asyncio", "watchfiles")
"""Libraries that tell about themselves below the level of a warning: event loops, every answer of the API
server with its body, how many files changed beside a watched one."""
_FIRST = ("timestamp", "level", "event")


def set_up(log: LogConfig, stream: IO[str] | None = None) -> None:
    """Log to `stream` (default: standard error) from now on. May be called again to change format and level.

    json: one object a line with `timestamp` (ISO 8601, UTC), `level`, `logger`, `event` and the fields.
    """
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty()
    console = log.format == "console" or (log.format == "auto" and terminal)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _bytes_by_length,
    ]
    renderer: list[Processor] = (
        [
            structlog.dev.ConsoleRenderer(
                # The default prints local variables, which hold bodies.
                colors=terminal,
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if getattr(handler, "_extproc", False)]:
        root.removeHandler(old)
    handler._extproc = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(_LEVELS[log.level])
    logging.captureWarnings(True)
    for library in _TALKATIVE:
        logging.getLogger(library).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # a reload may change the level
    )


def _bytes_by_length(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, bytes | bytearray | memoryview):
            event[key] = f"<{len(value)} bytes>"
    return event


def _json(event: dict[str, Any], **_options: Any) -> str:
    event = {key: event[key] for key in _FIRST if key in event} | event
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()

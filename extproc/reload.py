"""Takes over a changed configuration file while requests flow; a file that cannot be used changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import structlog

from extproc.config import Config, ConfigError, needing_restart, parse, read_text, until_restart
from extproc.metrics import ConfigMetrics
from extproc.watch import moments

REREAD_SECONDS = 5.0
"""The file is read this often though no change was reported."""

Parse = Callable[[str, str, Path], Config]
"""Text, what to call it in errors, and where relative paths start, to a configuration; raises ConfigError."""

_log = structlog.get_logger(__name__)


class Reloader:
    """Keeps the running configuration equal to the file at `path`, as far as the file can be used.

    `running` is what was loaded from it at start. `apply` gets each new configuration, with the keys that
    need a restart as they were; if it raises, the configuration before stays the running one. `clock` gives
    seconds since the epoch, `parse` reads the file's text.
    """

    def __init__(
        self,
        path: Path,
        running: Config,
        apply: Callable[[Config], None],
        metrics: ConfigMetrics,
        clock: Callable[[], float] = time.time,
        parse: Parse = parse,
    ) -> None:
        self._path = path
        self._running = running
        self._apply = apply
        self._metrics = metrics
        self._clock = clock
        self._parse = parse
        self._seen: str | None = None
        """The file's text when it was last looked at; None: look again whatever it is."""
        self._complaint = ""
        """Why the file was not taken; empty if it was."""
        self._asked = False
        self._wake = asyncio.Event()
        metrics.started(clock())

    @property
    def running(self) -> Config:
        """The configuration that was applied last."""
        return self._running

    def trigger(self) -> None:
        """Look at the file now. For `loop.add_signal_handler(SIGHUP, ...)`: call it in the loop's thread."""
        self._asked = True
        self._wake.set()

    async def run(self) -> None:
        """Follow the file until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            while True:
                await self._wake.wait()
                self._wake.clear()
                asked, self._asked = self._asked, False
                await self.look(asked)

    async def look(self, asked: bool = False) -> None:
        """Read the file and apply it if it changed. `asked`: somebody waits to hear what came of it."""
        seen, self._seen = self._seen, None
        try:
            text = await asyncio.to_thread(read_text, self._path)
            self._seen = text
            if text == seen and not asked:
                return
            wanted = await asyncio.to_thread(self._parse, text, str(self._path), self._path.parent)
        except ConfigError as error:
            self._refuse(str(error), asked)
            return
        config = until_restart(self._running, wanted)
        changed = config != self._running
        if changed and not self._applied(config):
            return
        kept = needing_restart(self._running, wanted)
        self._metrics.restart_required(bool(kept))
        for key in kept:
            _log.warning("configuration key needs a restart; its old value is kept", key=key)
        if changed or asked or self._complaint:
            self._complaint = ""
            self._metrics.reloaded(self._clock())
            _log.info("configuration reloaded", path=str(self._path), changed=changed)

    async def _follow(self) -> None:
        async with aclosing(moments(self._path, REREAD_SECONDS)) as signs:
            async for _ in signs:
                self._wake.set()

    def _applied(self, config: Config) -> bool:
        try:
            self._apply(config)
        except Exception as error:
            self._seen = None  # what stopped it may pass, so it is tried again at the next look
            self._refuse(f"{type(error).__name__}: {error}", asked=False)
            return False
        self._running = config
        return True

    def _refuse(self, reason: str, asked: bool) -> None:
        """The file cannot be used. Said once, not at every look, for as long as the reason stays the same."""
        if reason == self._complaint and not asked:
            return
        self._complaint = reason
        self._metrics.refused()
        _log.error("configuration not taken; the one before it runs on", path=str(self._path), reason=reason)

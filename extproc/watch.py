"""When to look at a file again.

The directory and not the file is watched, because editors and Kubernetes replace a file under its name.
Events are only hints: they may be missing (network file systems), late or several for one change, so whoever
looks compares what is there with what was seen last, and looks every so often without any.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import structlog
import watchfiles

STEP_MS = 25
"""Events closer together than this are one change: a replacement is seen as several."""
LONGEST_MS = 250
"""A directory in which something changes all the time is looked at this often."""

_log = structlog.get_logger(__name__)


async def moments(path: Path, every_seconds: float) -> AsyncGenerator[None, None]:
    """Now, whenever the file at `path` may have changed, and `every_seconds` without any sign of a change.

    The file, its directory and the target of a symbolic link may all come and go.
    """
    yield
    blind = False
    while True:
        directories = _directories(path)
        if not directories or blind:
            await asyncio.sleep(every_seconds)
            yield
            continue
        events = watchfiles.awatch(
            *directories,
            watch_filter=None,
            debounce=LONGEST_MS,
            step=STEP_MS,
            rust_timeout=max(1, int(every_seconds * 1000)),
            yield_on_timeout=True,
            recursive=False,
        )
        try:
            async with aclosing(events):
                async for _ in events:
                    yield
                    if _directories(path) != directories:
                        break
        except FileNotFoundError:
            continue  # a directory has vanished since it was looked for
        except (OSError, RuntimeError) as error:
            # Most often the limit on inotify watches; RuntimeError is the watcher's own failure. Looking now
            # and then still works.
            blind = True
            _log.warning("file is not watched, it is read now and then", path=str(path), error=str(error))


def _directories(path: Path) -> frozenset[Path]:
    """The existing directories in which `path` can change: its own, and that of the file it links to.

    None where they cannot be told: links in a circle (RuntimeError), a name too long, no permission.
    """
    try:
        return frozenset(parent for parent in (path.parent, path.resolve().parent) if parent.is_dir())
    except (OSError, RuntimeError):
        return frozenset()

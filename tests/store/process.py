"""The `cacheprep` command as a process of its own, with an `Origin` as one more source.

KILL_AT=N in the environment: SIGKILL to itself just before its Nth change to the file system (an audit event
of open for writing, rename, remove, rmdir, mkdir or truncate). COUNT_TO=FILE: write how many there were.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from cacheprep import cli
from tests.store.origin import OriginSource

_CHANGES = frozenset(("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"))


def main() -> None:
    from cacheprep.commands import fetch
    from cacheprep.sources import Source, SourceOptions, source_of

    def with_origin(url: str, options: SourceOptions) -> Source:
        return OriginSource(url) if url.startswith("origin:") else source_of(url, options)

    fetch.source_of = with_origin  # type: ignore[attr-defined]
    count = _watch(int(os.environ.get("KILL_AT", "0")))
    if "COUNT_TO" in os.environ:
        atexit.register(lambda: Path(os.environ["COUNT_TO"]).write_text(str(count())))
    cli.main()


def _watch(kill_at: int) -> Callable[[], int]:
    """Count changes from now on; returns how many there were."""
    count = 0

    def look(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event == "open":
            flags = arguments[2]
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR) or not _ours(arguments[0]):
                return
        elif event not in _CHANGES:
            return
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    return lambda: count


def _ours(path: object) -> bool:
    return isinstance(path, str) and "pycache" not in path


if __name__ == "__main__":
    main()

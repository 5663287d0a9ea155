"""Policies over one trace, several at once, each in a process of its own: none depends on another.

Processes are forked, so that they have the trace without reading it again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from multiprocessing.connection import Connection, wait
from time import process_time
from typing import Any, NamedTuple

from extproc.replay.arrival import Trace
from extproc.replay.policies import Named
from extproc.replay.run import Fleet, Outcome, replay

POLL_S = 0.1
"""Time between two looks at the progress of the processes."""


class Done(NamedTuple):
    """What came of one policy."""

    outcome: Outcome
    seconds: float
    """Processor time that it took."""


class JobError(Exception):
    """A process ended without an outcome; the text says which and what may help."""


def most() -> int:
    """Processes that this machine can run at once; 1 where it cannot fork."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(
    trace: Trace, fleet: Fleet, policies: Sequence[Named], jobs: int, progress: Callable[[int, int], None]
) -> Generator[tuple[int, Done]]:
    """Run the policies, at most `jobs` at once, and yield the index of each with its outcome when it is done.

    `progress` hears, now and then, the index of a policy and how many requests it has done. Closing the
    iterator ends the processes. Raises `JobError`, and what a policy raises.
    """
    if jobs == 1:
        for index, policy in enumerate(policies):
            yield index, _run(trace, fleet, policy, lambda done, index=index: progress(index, done))  # type: ignore[misc]
        return
    context = multiprocessing.get_context("fork")
    counts = context.Array("q", len(policies), lock=False)
    waiting = list(enumerate(policies))
    running: dict[Connection, tuple[int, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                index, policy = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_work, args=(theirs, counts, index, os.getpid(), trace, fleet, policy), daemon=True
                )
                process.start()
                theirs.close()
                running[ours] = index, process
            for ready in wait(list(running), POLL_S):
                assert isinstance(ready, Connection)  # noqa: S101 - there are no others
                index, process = running.pop(ready)
                yield index, _received(ready, process, policies[index].label)
            for index, _ in running.values():
                progress(index, counts[index])
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()


def _run(trace: Trace, fleet: Fleet, policy: Named, progress: Callable[[int], None]) -> Done:
    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        progress(done)

    began = process_time()
    outcome = replay(trace, fleet, policy.make, more)
    return Done(outcome, process_time() - began)


def _work(
    to: Connection, counts: Any, index: int, parent: int, trace: Trace, fleet: Fleet, policy: Named
) -> None:
    # Ctrl-C is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def progress(done: int) -> None:
        counts[index] = done
        if os.getppid() != parent:
            os._exit(1)

    try:
        result: Done | Exception = _run(trace, fleet, policy, progress)
    except Exception as error:
        result = error
    to.send(result)


def _received(connection: Connection, process: Any, label: str) -> Done:
    try:
        result = connection.recv()
    except EOFError:
        process.join()
        raise JobError(
            f"{label}: its process ended ({_ending(process.exitcode)}); with --jobs 1 it needs less memory"
        ) from None
    finally:
        connection.close()
    process.join()
    if isinstance(result, Exception):
        raise result
    assert isinstance(result, Done)  # noqa: S101 - nothing else is sent
    return result


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"

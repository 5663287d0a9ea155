"""What each step costs a process, side by side so that a busy machine changes all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

from bench.sharing.member import ENDPOINTS, memory
from bench.sharing.prompts import Kind, prompts, reading_seconds
from extproc.picker import Picked
from extproc.sharing.batches import Message, Writer, picks, read

PROMPTS = 500
ROUNDS = 20


def operations(kind: Kind) -> dict[str, float]:
    """CPU microseconds per pick, the least of several rounds: `read_body` (body to block keys, what a router
    does anyway), `tell` (pick to message), `parse` (message to pick), `enter` (into PREFIX_AWARE's memory).
    """
    told = [
        Picked("llama", keys, ENDPOINTS[index % len(ENDPOINTS)], 0.0, 8192)
        for index, keys in enumerate(prompts(kind, PROMPTS, 0))
    ]
    pool = memory(learns=True)

    def write() -> list[Message]:
        writer = Writer(1, count(1), 1.0)
        messages = [full for pick in told if (full := writer.add(pick))]
        last = writer.finish()
        return [*messages, last] if last else messages

    messages = write()

    def parse() -> None:
        for message in messages:
            batch = read(message.data)
            for part in batch.pools:
                for _ in picks(batch, part):
                    pass

    def enter() -> None:
        for pick in told:
            tokens = pool.learn(pick.keys, pick.address)
            pool.heard(pick.address, tokens, time.monotonic())

    steps: dict[str, Callable[[], object]] = {"tell": write, "parse": parse, "enter": enter}
    found = {"read_body": [reading_seconds(kind, PROMPTS)]}
    for _ in range(ROUNDS):
        found["read_body"].append(reading_seconds(kind, PROMPTS))
        for name, step in steps.items():
            began = time.process_time()
            step()
            found.setdefault(name, []).append((time.process_time() - began) / PROMPTS)
    return {name: round(1e6 * min(times), 1) for name, times in found.items()}

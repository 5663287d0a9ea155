"""How long text of prompts can be found in memory that the router has freed: no object of Python's holds it
(tests/prompt/test_canary.py), but what is freed is overwritten only when it is used again."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from tests.envoy.client import client
from tests.envoy.conftest import Stacks
from tests.envoy.traffic import ask, chat, in_parallel, text

FURTHER = 5_000
"""Requests after which all but a hundredth of it must be gone."""


async def test_of_a_thousand_prompts_next_to_nothing_is_left_in_freed_memory_after_further_requests(
    stacks: Stacks,
) -> None:
    canary = secrets.token_hex(16)
    async with stacks() as stack, client(stack.url, "HTTP/1.1") as gateway:
        assert stack.router.process is not None
        pid = stack.router.process.pid

        async def send(body: bytes) -> int:
            return (await ask(gateway, body)).status

        prompts = [chat(f"{canary} {text(seed, 2000)} {canary}") for seed in range(1000)]
        assert set(await in_parallel(prompts, 8, send)) == {200}
        at_once = copies(pid, canary)
        others = [chat(text(seed, 2200)) for seed in range(1000, 1000 + FURTHER)]
        assert set(await in_parallel(others, 8, send)) == {200}
        afterwards = copies(pid, canary)
    print(
        f"\nof 2,000 copies the router's memory has {at_once}, {afterwards} after {FURTHER:,} requests more"
    )
    assert afterwards <= 20


def copies(pid: int, canary: str) -> int:
    """How often the text stands in the writable memory of a process."""
    found = 0
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            area = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if area is not None:
                start, end = (int(at, 16) for at in area.groups())
                memory.seek(start)
                found += memory.read(end - start).count(canary.encode())
    return found

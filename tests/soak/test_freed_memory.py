"""How long text of prompts can be found in memory that the router has freed: no object of Python's holds it
(tests/prompt/test_canary.py), but what is freed is overwritten only when it is used again, unless the
allocators are told to, as manifests/components/overwritten-memory does."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

import pytest
import yaml

from tests.envoy.client import client
from tests.envoy.conftest import Stacks
from tests.envoy.traffic import ask, chat, in_parallel, text

COMPONENT = Path(__file__).parents[2] / "manifests/components/overwritten-memory/kustomization.yaml"

SHORT, LONG = 100, 2000
"""Characters of a prompt: Python allocates the first from pools of its own, the second from the C library."""


@pytest.mark.parametrize("length", [SHORT, LONG])
async def test_further_requests_overwrite_most_of_what_a_thousand_prompts_left_in_freed_memory(
    stacks: Stacks, length: int
) -> None:
    at_once, afterwards = await left_of_a_thousand(stacks, length, further=5_000)
    print(f"\n{length} characters: of 2,000 copies {at_once} found at once, {afterwards} later")
    assert afterwards <= at_once / 2


@pytest.mark.parametrize("length", [SHORT, LONG])
async def test_where_freed_memory_is_overwritten_nothing_is_left_after_a_thousand_further_requests(
    stacks: Stacks, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    for variable in overwriting():
        monkeypatch.setenv(variable["name"], variable["value"])
    at_once, afterwards = await left_of_a_thousand(stacks, length, further=1_000)
    print(f"\n{length} characters, overwritten: of 2,000 copies {at_once} found at once, {afterwards} later")
    assert afterwards == 0


async def left_of_a_thousand(stacks: Stacks, length: int, further: int) -> tuple[int, int]:
    """How often the text that stands twice in each of 1,000 prompts of some `length` characters is in the
    router's memory right after them, and after `further` requests of other text and of all lengths."""
    canary = secrets.token_hex(16)
    async with stacks() as stack, client(stack.url, "HTTP/1.1") as gateway:
        assert stack.router.process is not None
        pid = stack.router.process.pid

        async def send(body: bytes) -> int:
            return (await ask(gateway, body)).status

        prompts = [chat(f"{canary} {text(seed, length)} {canary}") for seed in range(1000)]
        assert set(await in_parallel(prompts, 8, send)) == {200}
        at_once = copies(pid, canary)
        others = [chat(text(seed, of_all_lengths(seed))) for seed in range(1000, 1000 + further)]
        assert set(await in_parallel(others, 8, send)) == {200}
        return at_once, copies(pid, canary)


def of_all_lengths(seed: int) -> int:
    """20 to 9,000 characters, and 60,000 of each twentieth."""
    return 60_000 if seed % 20 == 0 else 20 + seed * 7919 % 8981


def overwriting() -> list[dict[str, str]]:
    """The environment variables that the component sets."""
    patch = yaml.safe_load(yaml.safe_load(COMPONENT.read_text())["patches"][0]["patch"])
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    variables: list[dict[str, str]] = container["env"]
    return variables


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

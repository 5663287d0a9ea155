"""What a replica knows, for a peer that has just started: asked for once, by the one from the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import repeat

import grpc
import structlog
from google.protobuf.message import DecodeError

from extproc.picker import Picked
from extproc.prefix import MAX_KEYS, BlockKeys
from extproc.sharing.batches import MAX_CONTENT, Writer
from extproc.sharing.inbox import Inbox
from extproc.sharing.memory import Memory
from extproc.sharing.peer import Peer
from extproc.sharing.picks_pb2 import Question
from extproc.sharing.turns import in_turns

MAX_PROMPTS = 16_384
"""Prompts that are told at most, whatever is asked for."""
MAX_BYTES = 8 * 1024 * 1024
"""Bytes of an answer at most: 20,000 prompts of 8 KB that have nothing in common."""

_log = structlog.get_logger(__name__)


async def answer(question: bytes, instance: int, memories: Mapping[str, Memory]) -> AsyncIterator[bytes]:
    """What the pools know, most recent first, in messages of `instance`, a little at a time."""
    try:
        limit = Question.FromString(question).limit
    except DecodeError:
        return
    each = min(limit, MAX_PROMPTS) // max(1, len(memories))
    writer = Writer(instance, repeat(0), 0.0)
    size = 0
    async for one in in_turns(_known(memories, each)):
        if full := writer.add(one):
            yield full.data
            size += len(full.data)
            if size >= MAX_BYTES:
                return
    if last := writer.finish():
        yield last.data


async def ask(peer: Peer, inbox: Inbox, seconds: float) -> int:
    """Learn what a peer knows, the oldest first, so that what is recent is remembered longest.

    The answer may take so many seconds; what has come by then is used. Returns how many prompts were learnt.
    Never raises for anything that a peer does.
    """
    messages: list[bytes] = []
    size = 0
    failed = ""
    try:
        async for message in peer.known(MAX_PROMPTS, seconds):
            messages.append(message)
            size += len(message)
            if size > 2 * MAX_BYTES:
                break
    except grpc.aio.AioRpcError as error:
        failed = error.code().name
    except ConnectionError as error:
        failed = str(error)
    learnt = 0
    while messages:
        learnt += await inbox.learn(messages.pop())
        await asyncio.sleep(0)
    _log.info("learnt from a peer", peer=peer.address, prompts=learnt, bytes=size, failed=failed or None)
    return learnt


def _known(memories: Mapping[str, Memory], each: int) -> Iterator[Picked]:
    for pool, memory in memories.items():
        # All at once: while these are told, requests go on and the pool learns.
        for keys, ends, address in list(memory.known(each)):
            if _sound(keys, ends):
                yield Picked(pool, BlockKeys(keys, ends), address, 0.0, 0)


def _sound(keys: list[int], ends: list[int]) -> bool:
    """Whether a reader would take these."""
    return (
        0 < len(keys) == len(ends) <= MAX_KEYS
        and ends == sorted(ends)
        and 0 <= ends[0] <= ends[-1] <= MAX_CONTENT
    )

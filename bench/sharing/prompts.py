"""Block keys of 8 KB chat requests, read from bodies as the router reads them."""

from __future__ import annotations

import random
import time
from typing import Literal, get_args

import orjson

from extproc.prefix import BlockKeys, block_keys
from extproc.prompt import read

BODY_BYTES = 8 * 1024

Kind = Literal["unlike", "system", "turns"]
"""unlike: chats of 4 messages that have nothing in common. system: the same behind one system prompt of 2 KB.
turns: conversations of up to 8 KB whose every request repeats the turns before it."""
KINDS: tuple[Kind, ...] = get_args(Kind)

_WORDS = [
    f"{first}{second}" for first in ("ka", "lo", "mi", "ru", "te") for second in ("ba", "den", "gar", "os")
]


def prompts(kind: Kind, number: int, seed: int) -> list[BlockKeys]:
    """So many prompts; two replicas with different seeds have none in common but the system prompt."""
    draw = random.Random(f"{kind} {seed}")
    system = _text(random.Random(0), 2048)
    if kind != "turns":
        return [_keys(_chat(draw, system if kind == "system" else _text(draw, 2048))) for _ in range(number)]
    found: list[BlockKeys] = []
    conversations: list[list[dict[str, str]]] = [[_system(system)] for _ in range(50)]
    while len(found) < number:
        index = draw.randrange(len(conversations))
        chat = conversations[index]
        chat.append(_message(draw, len(chat), draw.randint(100, 900)))
        found.append(_keys(chat))
        chat.append(_message(draw, len(chat), draw.randint(100, 900)))
        if sum(len(message["content"]) for message in chat) > BODY_BYTES:
            conversations[index] = [_system(system)]
    return found


def _chat(draw: random.Random, system: str) -> list[dict[str, str]]:
    size = (BODY_BYTES - len(system)) // 3
    return [_system(system), *(_message(draw, number, size) for number in range(1, 4))]


def reading_seconds(kind: Kind, times: int = 500) -> float:
    """CPU time to read one body and make its block keys, which a router does for each request anyway."""
    draw = random.Random(kind)
    body = _body(_chat(draw, _text(draw, 2048)))
    began = time.process_time()
    for _ in range(times):
        _read(body)
    return (time.process_time() - began) / times


def _keys(messages: list[dict[str, str]]) -> BlockKeys:
    return _read(_body(messages))


def _body(messages: list[dict[str, str]]) -> bytes:
    return orjson.dumps({"model": "llama", "messages": messages})


def _read(body: bytes) -> BlockKeys:
    prompt = read("/v1/chat/completions", body, True)
    assert prompt is not None
    return block_keys(prompt)


def _system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def _message(draw: random.Random, number: int, size: int) -> dict[str, str]:
    return {"role": "user" if number % 2 else "assistant", "content": _text(draw, size)}


def _text(draw: random.Random, size: int) -> str:
    return " ".join(draw.choices(_WORDS, k=size // 4))[:size]

"""Nothing of a prompt is kept once its keys are used."""

import gc
import gzip
import json
import secrets

from extproc.prefix import block_keys
from extproc.prompt import APIS, read


def bodies(canary: str) -> list[tuple[str, bytes, str]]:
    """Return paths, bodies and encodings, with the canary as text, key, role, type, id, model and salt."""
    parts = [
        {"type": "text", "text": canary},
        {"type": canary, "text": canary},
        {"type": "image_url", "image_url": {"url": canary}},
        {"type": "tool_result", "tool_use_id": canary, "content": canary},
    ]
    messages = [
        {"role": "user", "content": canary},
        {"role": canary, "content": parts, "name": canary, "images": [canary]},
        {"role": "assistant", "tool_calls": [{"id": canary, "function": {canary: canary}}]},
    ]
    items = [*messages, {"type": "function_call_output", "output": canary}, {"type": canary, canary: canary}]
    fields = {
        "model": canary,
        "cache_salt": canary,
        "lora_path": canary,
        "tools": [{"name": canary}],
        "messages": messages,
        "prompt": canary,
        "input": items,
        "inputs": [canary],
        "system": canary,
        "instructions": canary,
        "query": canary,
        "documents": [canary],
        canary: canary,
        "text_input": canary,
        "text": canary,
        "previous_response_id": canary,
    }
    paths = [*(path for api in APIS for path in api.paths), "", f"/{canary}"]
    found = []
    for path in paths:
        whole = json.dumps(fields).encode()
        found += [
            (path, whole, ""),
            (path, whole[: len(whole) * 2 // 3], ""),
            (path, gzip.compress(whole), "gzip"),
            (path, canary.encode(), ""),
            (path, json.dumps({"messages": canary, "bad": "\ud83d" + canary}).encode(), ""),
        ]
    return found


def holders(canary: str) -> list[str]:
    """Return the kinds of reachable objects that hold the canary.

    The collector knows no strings, nor tuples and dicts of nothing else, so what it knows is followed down.
    """
    raw = canary.encode()
    gc.collect()
    found: list[str] = []
    todo: list[object] = gc.get_objects()
    seen = {id(held) for held in (todo, found)}
    while todo:
        holder = todo.pop()
        for held in gc.get_referents(holder):
            if isinstance(held, str | bytes | bytearray):
                if held is not canary and held is not raw:
                    text = held if isinstance(held, str) else held.decode(errors="replace")
                    if canary in text:
                        found.append(f"{type(holder).__name__} holds {type(held).__name__}")
            elif id(held) not in seen and not gc.is_tracked(held):
                seen.add(id(held))
                todo.append(held)
    return found


def route(canary: str, count: int) -> int:
    """Read and key so many bodies, keep nothing, and return how many keys there were."""
    keys = 0
    for _ in range(1 + count // len(bodies(canary))):
        for path, body, encoding in bodies(canary):
            prompt = read(path, body, True, encoding)
            if prompt is not None:
                keys += len(block_keys(prompt).keys)
    return keys


def test_after_a_thousand_prompts_no_object_holds_any_of_their_text() -> None:
    canary = secrets.token_hex(16)
    assert route(canary, 1000) > 1000
    assert holders(canary) == []


def test_the_search_finds_what_is_kept() -> None:
    canary = secrets.token_hex(16)
    kept = [{"text": f"some {canary} text"}, (b"a", canary.encode() + b"!"), f"{canary}."]
    assert sorted(holders(canary)) == ["dict holds str", "list holds str", "tuple holds bytes"]
    del kept

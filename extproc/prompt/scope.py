"""The isolation scope: what keeps equal content apart in an engine's KV cache.

It is read apart from the content because most clients name the model after the messages, so that a body which
was cut may not show it. Its fields are top-level ones, whatever the API, but for the two said:

- model: `model`. In vLLM this also names the LoRA adapter.
- adapter: `lora_request` (TensorRT-LLM), `lora_path` (SGLang), `lora_adapter`, `adapter`, `adapters` (DJL),
  `adapter_id` (LoRAX); the first that is there, else `parameters.adapter_id` (TGI).
- salt: `cache_salt` (vLLM, TensorRT-LLM, SGLang) and `extra_key` (SGLang), the fields that are meant to
  isolate, else `nvext.cache_salt` (Dynamo).
- tools: whatever else the chat template renders before or around all messages, see TEMPLATE. Marks for a
  cache (`cache_control`) on a tool are no part of it: clients move them from turn to turn.

`tool_choice`, `response_format` and other structured output are no part of it: they constrain what is
decoded, clients change them from turn to turn, and the rendered prompt stays the same or nearly so.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import xxhash

from extproc.prompt.body import last_key
from extproc.prompt.canonical import canonical, digest

_SEED = 0x57A2_6D0C_95E1_B83F
"""Any fixed number: all routers must compute the same digest."""

TEMPLATE = ("tools", "functions", "documents", "chat_template", "chat_template_kwargs")
"""Fields that the chat template renders beside the messages: they enter the scope by one digest."""

_ADAPTER = ("lora_request", "lora_path", "lora_adapter", "adapter", "adapters", "adapter_id")
_SALT = ("cache_salt", "extra_key")
_RARE = frozenset((*TEMPLATE, *_ADAPTER, *_SALT, "parameters", "nvext"))


class Scope(NamedTuple):
    """Top-level fields that keep equal content apart; empty where absent.

    `tools` is the digest of the TEMPLATE fields that are there. `partial` says that the body was cut and
    not all four were seen by then, so that requests of different scopes may look alike here. As most
    requests have no adapter and no salt, that is so for nearly every body that was cut.
    """

    model: str = ""
    adapter: str = ""
    salt: str = ""
    tools: bytes = b""
    partial: bool = False

    def digest(self) -> int:
        """Return 64 bits (XXH3-64, fixed seed) that stand for the scope; `partial` is no part of it."""
        model, adapter, salt = self.model.encode(), self.adapter.encode(), self.salt.encode()
        written = b"model %d %b adapter %d %b salt %d %b tools %d %b" % (
            *(len(model), model, len(adapter), adapter),
            *(len(salt), salt, len(self.tools), self.tools),
        )
        found: int = xxhash.xxh3_64_intdigest(written, _SEED)
        return found


def read_scope(fields: dict[str, Any], truncated: bool, template: Sequence[str] = TEMPLATE) -> Scope:
    """Return the scope that a body's fields name. Never raises.

    A field that the cut may have hit (the last one of a `truncated` body) counts as absent, and so does one
    that is null, empty, or of a wrong type. `template` names the fields that the API renders beside its
    content.
    """
    if truncated:
        cut = last_key(fields)
        fields = {name: value for name, value in fields.items() if name != cut}
    model = fields.get("model")
    if not isinstance(model, str):
        model = ""
    if _RARE.isdisjoint(fields):  # most bodies, and they are spared the look-ups
        return Scope(model, "", "", b"", truncated)
    rendered = {name: _unmarked(fields[name]) for name in template if fields.get(name)}
    scope = Scope(model, _adapter(fields), _salt(fields), digest(rendered) if rendered else b"")
    return scope._replace(partial=True) if truncated and not all(scope[:4]) else scope


def _adapter(fields: dict[str, Any]) -> str:
    adapter = next((fields[name] for name in _ADAPTER if fields.get(name)), None)
    if adapter is None:
        parameters = fields.get("parameters")
        adapter = parameters.get("adapter_id") if isinstance(parameters, dict) else None
    if isinstance(adapter, str):
        return adapter
    return canonical(adapter).decode() if adapter else ""


def _salt(fields: dict[str, Any]) -> str:
    salts = {name: fields[name] for name in _SALT if fields.get(name)}
    if not salts:
        nvext = fields.get("nvext")
        salt = nvext.get("cache_salt") if isinstance(nvext, dict) else None
        return salt if isinstance(salt, str) else ""
    salt = salts.get("cache_salt")
    if len(salts) == 1 and isinstance(salt, str):
        return salt
    texts = {name: value for name, value in salts.items() if _is_salt(value)}
    return canonical(texts).decode() if texts else ""


def _is_salt(value: object) -> bool:
    """SGLang takes a list too: one salt for each prompt of a list."""
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )


def _unmarked(value: object) -> object:
    """Return the value without cache marks on the objects that it lists."""
    if not isinstance(value, list) or not any(
        isinstance(item, dict) and "cache_control" in item for item in value
    ):
        return value
    return [
        {key: field for key, field in item.items() if key != "cache_control"}
        if isinstance(item, dict)
        else item
        for item in value
    ]

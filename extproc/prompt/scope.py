"""The isolation scope: what keeps equal content apart in an engine's KV cache.

It is read apart from the content because most clients name the model after the messages, so that a body which
was cut may not show it. Its fields are top-level ones, whatever the API:

- model: `model`. In vLLM this also names the LoRA adapter.
- adapter: `lora_request` (TensorRT-LLM), `lora_path` (SGLang), `lora_adapter`, `adapter`, `adapters` (DJL),
  `adapter_id` (LoRAX); the first that is there.
- salt: `cache_salt` (vLLM), the field that is meant to isolate.
- tools: whatever else the chat template renders before or around all messages, see TEMPLATE.

`tool_choice`, `response_format` and other structured output are no part of it: they constrain what is
decoded, clients change them from turn to turn, and the rendered prompt stays the same or nearly so.
"""

from typing import Any, NamedTuple

import xxhash

from extproc.prompt.body import last_key
from extproc.prompt.canonical import canonical, digest

_SEED = 0x57A2_6D0C_95E1_B83F
"""Any fixed number: all routers must compute the same digest."""

TEMPLATE = ("tools", "functions", "documents", "chat_template", "chat_template_kwargs")
"""Fields that the chat template renders beside the messages: they enter the scope by one digest."""

_ADAPTER = ("lora_request", "lora_path", "lora_adapter", "adapter", "adapters", "adapter_id")


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


def read_scope(fields: dict[str, Any], truncated: bool) -> Scope:
    """Return the scope that a body's fields name. Never raises.

    A field that the cut may have hit (the last one of a `truncated` body) counts as absent, and so does one
    that is null, empty, or of a wrong type.
    """
    if truncated:
        cut = last_key(fields)
        fields = {name: value for name, value in fields.items() if name != cut}
    model, salt = fields.get("model"), fields.get("cache_salt")
    adapter = next((fields[name] for name in _ADAPTER if fields.get(name)), None)
    template = {name: fields[name] for name in TEMPLATE if fields.get(name)}
    scope = Scope(
        model if isinstance(model, str) else "",
        "" if adapter is None else adapter if isinstance(adapter, str) else canonical(adapter).decode(),
        salt if isinstance(salt, str) else "",
        digest(template) if template else b"",
    )
    return scope._replace(partial=True) if truncated and not all(scope[:4]) else scope

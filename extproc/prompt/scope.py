"""The isolation scope: what keeps equal content apart in an engine's KV cache.

It is read apart from the content because most clients name the model after the messages, so that a body which
was cut may not show it. Its fields are top-level ones, whatever the API:

- model: `model`. In vLLM this also names the LoRA adapter.
- adapter: `lora_request` (TensorRT-LLM), `lora_path` (SGLang), `lora_adapter`, `adapter`, `adapters` (DJL),
  `adapter_id` (LoRAX); the first that is there.
- salt: `cache_salt` (vLLM), the field that is meant to isolate.
- tools: whatever else the chat template renders before or around all messages, see TEMPLATE.

`tool_choice`, `response_format` and other structured output are no part of it: they constrain what is decoded,
clients change them from turn to turn, and the rendered prompt stays the same or nearly so.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import xxhash

_SEED = 0x57A2_6D0C_95E1_B83F
"""Any fixed number: all routers must compute the same digest."""

TEMPLATE = ("tools", "functions", "documents", "chat_template", "chat_template_kwargs")
"""Fields that the chat template renders beside the messages: they enter the scope by one digest."""

_ADAPTER = ("lora_request", "lora_path", "lora_adapter", "adapter", "adapters", "adapter_id")

"""Speeds and sizes of engines, derived from published figures by a roofline and never measured here.

Sources: NVIDIA H100 SXM data sheet (80 GB, 3.35 TB/s, 989 TFLOPS dense BF16), NVIDIA A100 SXM data sheet (80
GB, 2.039 TB/s, 312 TFLOPS dense BF16); layer and head counts from the models' `config.json` (Llama 3.1 8B: 32
layers, 8 KV heads of 128; 70B: 80 layers, 8 KV heads of 128). Prefill costs 2 FLOPs per parameter and token;
a decode step reads all weights once and the KV cache of every sequence (Pope et al., Efficiently Scaling
Transformer Inference, MLSys 2023). The efficiencies, half of peak FLOPS and seven tenths of peak bandwidth,
are usual for tuned engines and an assumption.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FLOPS_EFFICIENCY = 0.5
BANDWIDTH_EFFICIENCY = 0.7
MEMORY_UTILISATION = 0.9
"""vLLM's default `gpu_memory_utilization`."""
MEAN_CONTEXT_TOKENS = 2000
"""Context assumed per sequence for the part of a decode step that grows with the batch."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Speed and size of one engine. Seconds, tokens and blocks; `source` says where the figures come from."""

    prefill_tokens_per_s: float
    """Prompt tokens computed per second when nothing else runs."""
    prefill_overhead_s: float
    """Fixed cost of each prefill: scheduling, launch, sampling of the first token."""
    step_s: float
    """One decode step with an empty batch: reading the weights."""
    step_per_request_s: float
    """What each running sequence adds to a decode step: reading its KV cache."""
    blocks: int
    """KV cache capacity in blocks."""
    block_tokens: int = 16
    """Tokens per block; 16 is vLLM's default on NVIDIA GPUs."""
    max_num_seqs: int = 256
    """Most requests running at once; the name and the default are vLLM's."""
    chunk_tokens: int = 2048
    """Prompt tokens per engine step while others decode (vLLM's `max_num_batched_tokens`, chunked prefill).
    0: prefill and decode do not slow each other, as on disaggregated engines."""
    source: str = ""

    def __post_init__(self) -> None:
        if self.prefill_tokens_per_s <= 0:
            raise ValueError(f"prefill_tokens_per_s must be above 0, not {self.prefill_tokens_per_s}")
        if self.step_s <= 0 or self.step_per_request_s < 0 or self.prefill_overhead_s < 0:
            raise ValueError("step_s must be above 0, step_per_request_s and prefill_overhead_s not below 0")
        if min(self.blocks, self.block_tokens, self.max_num_seqs) < 1 or self.chunk_tokens < 0:
            raise ValueError(
                "blocks, block_tokens and max_num_seqs must be at least 1, chunk_tokens not below 0"
            )


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One GPU: bytes of memory, bytes per second of memory bandwidth, dense BF16 FLOPS; all per GPU."""

    name: str
    memory: float
    bandwidth: float
    flops: float


@dataclass(frozen=True, slots=True)
class ModelShape:
    """One model: parameters, and what a token's keys and values take in the cache (bytes), both in BF16."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head_size: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of every layer, two bytes each."""
        return self.layers * self.kv_heads * self.head_size * 2 * 2


H100 = Accelerator("H100 SXM", 80e9, 3.35e12, 989e12)
A100 = Accelerator("A100 SXM", 80e9, 2.039e12, 312e12)
LLAMA_8B = ModelShape("Llama 3.1 8B", 8.03e9, 32, 8, 128)
LLAMA_70B = ModelShape("Llama 3.1 70B", 70.6e9, 80, 8, 128)


def roofline(model: ModelShape, accelerator: Accelerator, count: int = 1) -> EngineSpec:
    """Return the engine that `count` accelerators with tensor parallelism make of `model`, in BF16."""
    weights = model.parameters * 2
    bandwidth = accelerator.bandwidth * count * BANDWIDTH_EFFICIENCY
    # Activations and graphs: 5 % of the weights.
    memory = accelerator.memory * count * MEMORY_UTILISATION - weights * 1.05
    return EngineSpec(
        prefill_tokens_per_s=round(accelerator.flops * count * FLOPS_EFFICIENCY / (2 * model.parameters)),
        prefill_overhead_s=0.008,
        step_s=round(weights / bandwidth, 5),
        step_per_request_s=round(model.kv_bytes_per_token * MEAN_CONTEXT_TOKENS / bandwidth, 7),
        blocks=int(memory / (model.kv_bytes_per_token * 16)),
        source=f"roofline: {model.name}, {count} x {accelerator.name}, BF16",
    )


PRESETS: dict[str, EngineSpec] = {
    "h100-8b": roofline(LLAMA_8B, H100),
    "a100-8b": roofline(LLAMA_8B, A100),
    "4xh100-70b": roofline(LLAMA_70B, H100, 4),
    "8xa100-70b": roofline(LLAMA_70B, A100, 8),
    # The demo's prompts are a quarter as long as recorded, and so is the cache that they have to fit in.
    "demo": replace(
        roofline(LLAMA_70B, H100, 4),
        blocks=roofline(LLAMA_70B, H100, 4).blocks // 4,
        max_num_seqs=64,
        source="roofline: Llama 3.1 70B, 4 x H100 SXM, BF16; KV cache scaled to a quarter",
    ),
}
"""Presets by name."""

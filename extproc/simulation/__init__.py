"""A simulated LLM engine: one model of prefill, KV cache, batching and queue, and an OpenAI-compatible HTTP
shell.

`model.Engine` is pure and runs in virtual time; `http.engines` serves it in real time. Nothing here holds a
model or computes an answer: output text is pseudo-random, and every reply says that it is a simulation.
"""

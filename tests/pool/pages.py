"""Metrics pages as engines write them, cut to what matters: the figures, and lines that look like them."""

from __future__ import annotations

VLLM = b"""\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 388.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta/llama"} 7.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta/llama"} 3.0
# HELP vllm:num_requests_waiting_by_reason Number of requests waiting by reason.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="meta/llama",reason="capacity"} 3.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta/llama"} 0.25
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="meta/llama"} 2.000e+06
# HELP vllm:prefix_cache_queries_created Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="meta/llama"} 1.796019e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="meta/llama"} 1.5e+06
# TYPE vllm:external_prefix_cache_hits_total counter
vllm:external_prefix_cache_hits_total{engine="0",model_name="meta/llama"} 99.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="meta/llama"} 1.0e+06
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="meta/llama",source="local_compute"} 300000.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="meta/llama",source="local_cache_hit"} 700000.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="meta/llama",source="external_kv_transfer"} 0.0
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_bucket{engine="0",le="0.3",model_name="meta/llama"} 40.0
vllm:request_prefill_time_seconds_bucket{engine="0",le="+Inf",model_name="meta/llama"} 50.0
vllm:request_prefill_time_seconds_count{engine="0",model_name="meta/llama"} 50.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="meta/llama"} 12.5
"""

VLLM_WITHOUT_SOURCES = b"\n".join(line for line in VLLM.splitlines() if b"by_source" not in line) + b"\n"
"""As before prompt tokens were told apart by source."""

VLLM_V0 = b"""\
# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="llama"} 2.0
vllm:num_requests_waiting{model_name="llama"} 0.0
vllm:num_requests_swapped{model_name="llama"} 9.0
vllm:gpu_cache_usage_perc{model_name="llama"} 0.5
vllm:cpu_cache_usage_perc{model_name="llama"} 0.9
vllm:prompt_tokens_total{model_name="llama"} 1000.0
"""

VLLM_DATA_PARALLEL = b"""\
vllm:num_requests_running{engine="0",model_name="m"} 4.0
vllm:num_requests_running{engine="1",model_name="m"} 6.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="11"} 0.2
vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="12"} 0.1
vllm:kv_cache_usage_perc{engine="1",model_name="m",pid="11"} 0.6
vllm:request_prefill_time_seconds_bucket{engine="0",le="+Inf",model_name="m"} 10.0
vllm:request_prefill_time_seconds_count{engine="0",model_name="m"} 10.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="m"} 5.0
vllm:request_prefill_time_seconds_bucket{engine="1",le="+Inf",model_name="m"} 30.0
vllm:request_prefill_time_seconds_count{engine="1",model_name="m"} 30.0
vllm:request_prefill_time_seconds_sum{engine="1",model_name="m"} 7.0
"""

SGLANG = b"""\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 12.0
sglang:num_running_reqs_offline_batch{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 1.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 5.0
sglang:num_grammar_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 2.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.28
sglang:cache_hit_rate{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.0075
sglang:realtime_tokens_total{engine_type="unified",mode="prefill_compute",model_name="m",tp_rank="0"} 600.0
sglang:realtime_tokens_total{engine_type="unified",mode="prefill_cache",model_name="m",tp_rank="0"} 400.0
sglang:realtime_tokens_total{engine_type="unified",mode="decode",model_name="m",tp_rank="0"} 5000.0
sglang:per_stage_req_latency_seconds_bucket{le="+Inf",model_name="m",stage="prefill_forward",tp_rank="0"} 8.0
sglang:per_stage_req_latency_seconds_count{model_name="m",stage="prefill_forward",tp_rank="0"} 8.0
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="prefill_forward",tp_rank="0"} 2.5
sglang:per_stage_req_latency_seconds_count{model_name="m",stage="request_process",tp_rank="0"} 8.0
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="request_process",tp_rank="0"} 0.1
sglang:prompt_tokens_total{model_name="m"} 900.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 300.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 50.0
"""

SGLANG_WITHOUT_REALTIME = b"\n".join(line for line in SGLANG.splitlines() if b"realtime" not in line) + b"\n"

SGLANG_EVERY_RANK = b"""\
sglang:num_running_reqs{dp_rank="0",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 3.0
sglang:num_running_reqs{dp_rank="0",model_name="m",moe_ep_rank="1",pp_rank="0",tp_rank="1"} 3.0
sglang:num_running_reqs{dp_rank="0",model_name="m",moe_ep_rank="0",pp_rank="1",tp_rank="0"} 3.0
sglang:num_running_reqs{dp_rank="1",model_name="m",moe_ep_rank="2",pp_rank="0",tp_rank="2"} 4.0
sglang:num_running_reqs{dp_rank="1",model_name="m",moe_ep_rank="3",pp_rank="0",tp_rank="3"} 4.0
sglang:num_queue_reqs{dp_rank="0",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 1.0
sglang:num_queue_reqs{dp_rank="0",model_name="m",moe_ep_rank="1",pp_rank="0",tp_rank="1"} 1.0
sglang:token_usage{dp_rank="0",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 0.4
sglang:token_usage{dp_rank="0",model_name="m",moe_ep_rank="1",pp_rank="0",tp_rank="1"} 0.4
sglang:token_usage{dp_rank="1",model_name="m",moe_ep_rank="2",pp_rank="0",tp_rank="2"} 0.8
"""
"""Two data-parallel groups of two tensor-parallel ranks, all of which report."""

SGLANG_PRIORITIES = b"""\
sglang:num_running_reqs{model_name="m",priority="",tp_rank="0"} 5.0
sglang:num_running_reqs{model_name="m",priority="1",tp_rank="0"} 2.0
sglang:num_running_reqs{model_name="m",priority="2",tp_rank="0"} 3.0
sglang:num_queue_reqs{model_name="m",priority="",tp_rank="0"} 1.0
sglang:num_queue_reqs{model_name="m",priority="2",tp_rank="0"} 1.0
"""

TRTLLM = b"""\
trtllm_request_success_total{engine_type="trtllm",finished_reason="stop",model_name="m"} 20.0
trtllm_request_prefill_time_seconds_bucket{engine_type="trtllm",le="+Inf",model_name="m"} 20.0
trtllm_request_prefill_time_seconds_count{engine_type="trtllm",model_name="m"} 20.0
trtllm_request_prefill_time_seconds_sum{engine_type="trtllm",model_name="m"} 3.5
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 10000.0
trtllm_prompt_cached_tokens_total{engine_type="trtllm",model_name="m"} 4000.0
trtllm_kv_cache_hit_rate{engine_type="trtllm",model_name="m"} 0.4
trtllm_kv_cache_reused_blocks_total{engine_type="trtllm",model_name="m"} 10.0
trtllm_kv_cache_missed_blocks_total{engine_type="trtllm",model_name="m"} 30.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.75
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 16.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 2.0
"""

TRTLLM_BEFORE_ITS_FIRST_BATCH = b"""\
# HELP trtllm_num_requests_running Number of active requests
# TYPE trtllm_num_requests_running gauge
# HELP trtllm_prompt_cached_tokens_total Process-lifetime total prompt tokens served from KV cache.
# TYPE trtllm_prompt_cached_tokens_total counter
trtllm_prompt_cached_tokens_total{engine_type="trtllm",model_name="m"} 0.0
"""

TRITON = b"""\
nv_inference_request_success{model="tensorrt_llm",version="1"} 40
# HELP nv_trt_llm_request_metrics TRT LLM request metrics
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 6
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 10
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.4875
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6239
"""

NO_ENGINE = b"""\
# HELP go_goroutines Number of goroutines that currently exist.
# TYPE go_goroutines gauge
go_goroutines 9
process_cpu_seconds_total 12.5
"""

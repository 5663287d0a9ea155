"""One LLM engine in virtual time: a first-in-first-out queue, chunked prefill, continuous batching, a
block-LRU KV cache.

Theory of operation. Time is passed in (seconds, any origin, never backwards); there is no clock, no IO and no
randomness, so equal calls give equal events. The engine prefills one request at a time, in order of arrival,
while all others that have their first token decode together. With chunked prefill a prompt takes one engine
step per `chunk_tokens` of what is not cached, at least one, and each of those steps gives every decoding
request one token too: n such steps take `n * step(batch)` longer than the prefill alone, and prefill and
decode slow each other accordingly; alone, each runs at its own speed. Between changes of what runs, all rates
are constant: the model needs about three events per request, not one per token. Decoding requests share one
count of steps and differ only in the step at which they began and will end.

A request starts, that is leaves the queue, when the prefill before it is done, fewer than `max_num_seqs` run,
and its blocks fit: those of its prompt and, reserved at once so that nothing is ever preempted, of its whole
output. The head of the queue waits for room, and those behind it wait too. The prefix cache is looked up at
the start, as vLLM's scheduler does (`KVCacheManager.get_computed_blocks`): whole blocks, never the last
token, which must be computed to give the first output token.

Not modelled: preemption, several prefills in one step (same total speed, another order within a chunk),
attention's growth with the length of the prompt, and speculative decoding.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from extproc.simulation.cache import BlockCache
from extproc.simulation.presets import EngineSpec


class Request(NamedTuple):
    """One request as an engine sees it."""

    id: Hashable
    """Unique among the requests the engine holds."""
    keys: Sequence[int]
    """Chained keys of the prompt's full blocks, in order.

    Fewer than full blocks: the rest cannot be shared.
    """
    prompt_tokens: int
    """Tokens of the prompt, at least 1."""
    output_tokens: int
    """Tokens it will generate, at least 1."""
    output_keys: Sequence[int] = ()
    """Keys of the full blocks behind `keys` once the output is appended; cached when the request finishes."""


class Kind(Enum):
    """What happened to a request."""

    STARTED = "started"
    """It left the queue and its prefill began."""
    FIRST_TOKEN = "first_token"  # noqa: S105 - not a secret
    """Its prefill is done, which gives the first output token."""
    TOKENS = "tokens"
    """It has generated more tokens; only with `stream_interval`."""
    FINISHED = "finished"
    """It has generated its last token and left the engine."""


# Looking a member up in its class costs as much as making the event.
_STARTED, _FIRST_TOKEN, _FINISHED = Kind.STARTED, Kind.FIRST_TOKEN, Kind.FINISHED


class Event(NamedTuple):
    """Something that happened at `time` (seconds) to request `id`."""

    kind: Kind
    time: float
    id: Hashable
    tokens: int
    """Output tokens generated so far."""
    cached: int
    """Prompt tokens that were found in the KV cache."""


@dataclass(slots=True)
class Counters:
    """Totals since the engine began. Tokens and requests; times in seconds."""

    submitted: int = 0
    finished: int = 0
    cancelled: int = 0
    queried_tokens: int = 0
    """Prompt tokens looked up in the prefix cache, as vLLM's `prefix_cache_queries`."""
    hit_tokens: int = 0
    """Of those, tokens found, as vLLM's `prefix_cache_hits`."""
    prompt_tokens: int = 0
    """Prompt tokens of requests whose prefill is done."""
    cached_tokens: int = 0
    """Of those, tokens that were found in the cache."""
    generated_tokens: int = 0
    prefill_busy_s: float = 0.0
    """Time in which a prefill ran."""
    busy_s: float = 0.0
    """Time in which anything ran."""

    @property
    def hit_rate(self) -> float:
        """Share of looked-up tokens that were found; 0 before the first look-up."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0


class TooLargeError(ValueError):
    """A request needs more blocks than the whole cache has."""


class _Running:
    """A request that has left the queue."""

    __slots__ = ("began", "cached", "counted", "gone", "order", "private", "request")

    def __init__(self, request: Request, order: int, cached: int, private: int) -> None:
        self.request = request
        self.order = order  # among those that reach the same step
        self.cached = cached
        self.private = private
        self.began = 0.0  # the engine's step count at the first token
        self.counted = 0  # output tokens already in the counters
        self.gone = False


class Engine:
    """The model of one engine.

    Drive it in real or virtual time: `submit` and `cancel` as requests come and go, `next_event` for when to
    call `advance`, which returns what has happened. `stream_interval` is the number of tokens between two
    `TOKENS` events of a request (vLLM's option of that name); 0 for none, which is fastest.
    """

    def __init__(self, spec: EngineSpec, stream_interval: int = 0) -> None:
        if stream_interval < 0:
            raise ValueError(f"stream_interval must not be below 0, not {stream_interval}")
        self.spec = spec
        self.counters = Counters()
        self.cache = BlockCache(spec.blocks)
        self._interval = stream_interval
        self._waiting: OrderedDict[Hashable, Request] = OrderedDict()
        self._prefilling: _Running | None = None
        self._prefill_left = 0.0  # seconds of prefill at full speed
        self._prefill_whole = 0.0  # the same at its start
        self._prefill_steps = 0  # engine steps it takes if others decode
        self._decoding: dict[Hashable, _Running] = {}
        self._milestones: list[
            tuple[float, int, _Running]
        ] = []  # heap by step count; entries of the gone are skipped
        self._steps = 0.0  # decode steps done at _since
        self._since = -inf  # when _steps, _prefill_left and the rates were last brought up to date
        self._now = -inf
        self._prefill_rate = 0.0
        self._decode_rate = 0.0
        self._prefill_at = inf
        self._milestone_at = inf
        self._started = 0
        self._events: list[Event] = []

    @property
    def running(self) -> int:
        """Requests that are prefilled or decode."""
        return len(self._decoding) + (self._prefilling is not None)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Fraction of blocks that running requests hold, 0 to 1."""
        return self.cache.in_use / self.spec.blocks

    def blocks_needed(self, request: Request) -> int:
        """Return how many blocks `request` holds while it runs."""
        return -(-(request.prompt_tokens + request.output_tokens - 1) // self.spec.block_tokens)

    def submit(self, request: Request, now: float) -> None:
        """Put `request` into the queue at `now`.

        Raises `TooLargeError` if it can never fit (vLLM refuses those by `max_model_len`), `ValueError` if it
        is malformed, its id is in use, or `now` lies before an earlier call.
        """
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("a request has at least one prompt token and one output token")
        if len(request.keys) > request.prompt_tokens // self.spec.block_tokens:
            raise ValueError("a request has at most one key per full block of its prompt")
        if (needed := self.blocks_needed(request)) > self.spec.blocks:
            raise TooLargeError(f"the request needs {needed} blocks, the KV cache has {self.spec.blocks}")
        if self._holds(request.id):
            raise ValueError(f"request {request.id!r} is already here")
        self._run(now)
        self.counters.submitted += 1
        self._waiting[request.id] = request
        self._start_next(now)

    def cancel(self, request_id: Hashable, now: float) -> bool:
        """Remove a request at `now`, wherever it is; its computed prompt blocks stay cached.

        False if it is not here (any more).
        """
        self._run(now)
        if self._waiting.pop(request_id, None) is not None:
            self.counters.cancelled += 1
            self._start_next(now)  # it may have been a head that waited for room
            return True
        prefilling = self._prefilling
        if prefilling is not None and prefilling.request.id == request_id:
            self._settle(now)
            request, spec = prefilling.request, self.spec
            computed = (
                request.prompt_tokens - prefilling.cached - self._prefill_left * spec.prefill_tokens_per_s
            )
            keep = (prefilling.cached + max(0, int(computed))) // spec.block_tokens
            self.cache.release(request.keys, prefilling.private, keep)
            self._prefilling = None
        else:
            running = self._decoding.pop(request_id, None)
            if running is None:
                return False
            self._settle(now)
            running.gone = True
            self._count(running, 1 + int(self._steps - running.began))
            self.cache.release(running.request.keys, running.private, len(running.request.keys))
        self.counters.cancelled += 1
        if not self._start_next(now):
            self._replan()
        return True

    def next_event(self) -> float:
        """Return the time at which `advance` will next have something to return; infinity if the engine is
        idle."""
        if self._events:
            return self._now
        return min(self._prefill_at, self._milestone_at)

    def advance(self, now: float) -> list[Event]:
        """Run up to `now` and return what happened since the last call, in order of time."""
        self._run(now)
        events, self._events = self._events, []
        return events

    def reset_cache(self) -> bool:
        """Forget all cached blocks, as vLLM's `reset_prefix_cache`: False, and no change, while requests
        run."""
        return self.cache.clear()

    def busy_until(self, now: float) -> tuple[float, float]:
        """Return the seconds up to `now` in which (a prefill, anything) ran."""
        elapsed = max(0.0, now - self._since) if self.running else 0.0
        prefill = self.counters.prefill_busy_s + (elapsed if self._prefilling is not None else 0.0)
        return prefill, self.counters.busy_s + elapsed

    def _holds(self, request_id: Hashable) -> bool:
        prefilling = self._prefilling
        return (
            request_id in self._waiting
            or request_id in self._decoding
            or (prefilling is not None and prefilling.request.id == request_id)
        )

    def _run(self, now: float) -> None:
        """Bring everything that happens up to and including `now` to pass."""
        if now < self._now:
            raise ValueError(f"time runs backwards: {now} after {self._now}")
        self._now = now
        while True:
            if self._prefill_at <= self._milestone_at:
                if self._prefill_at > now:
                    return
                self._end_prefill(self._prefill_at)
            else:
                if self._milestone_at > now:
                    return
                self._reach_milestone(self._milestone_at)

    def _end_prefill(self, at: float) -> None:
        running = self._prefilling
        assert running is not None  # noqa: S101 - _prefill_at is finite only while one runs
        self._settle(at)
        self._prefilling = None
        request = running.request
        self.counters.prompt_tokens += request.prompt_tokens
        self.counters.cached_tokens += running.cached
        self._count(running, 1)
        self._events.append(Event(_FIRST_TOKEN, at, request.id, 1, running.cached))
        if request.output_tokens == 1:
            self._finish(running, at)
        else:
            running.began = self._steps
            self._decoding[request.id] = running
            self._await_milestone(running, 1)
        if not self._start_next(at):
            self._replan()

    def _await_milestone(self, running: _Running, tokens: int) -> None:
        """Note when `running`, which has `tokens`, is next of interest."""
        target = running.request.output_tokens
        if self._interval:
            target = min(target, tokens + self._interval)
        heappush(self._milestones, (running.began + target - 1, running.order, running))

    def _reach_milestone(self, at: float) -> None:
        step, _, running = heappop(self._milestones)
        request = running.request
        tokens = 1 + round(step - running.began)
        self._count(running, tokens)
        if tokens < request.output_tokens:
            # What runs is unchanged, so the rates and their origin stay: results do not depend on the
            # interval.
            self._events.append(Event(Kind.TOKENS, at, request.id, tokens, running.cached))
            self._await_milestone(running, tokens)
            self._plan_milestone()
            return
        self._settle(at)
        self._steps = step
        del self._decoding[request.id]
        self._finish(running, at)
        if not self._start_next(at):
            self._replan()

    def _finish(self, running: _Running, at: float) -> None:
        request = running.request
        running.gone = True
        self.counters.finished += 1
        self.cache.release(request.keys, running.private, len(request.keys), request.output_keys)
        self._events.append(Event(_FINISHED, at, request.id, request.output_tokens, running.cached))

    def _count(self, running: _Running, tokens: int) -> None:
        self.counters.generated_tokens += tokens - running.counted
        running.counted = tokens

    def _start_next(self, now: float) -> bool:
        """Start the head of the queue if the prefill lane, the batch and the cache have room for it. If so,
        rates and next times are set anew."""
        if self._prefilling is not None or not self._waiting or len(self._decoding) >= self.spec.max_num_seqs:
            return False
        spec, counters = self.spec, self.counters
        request = next(iter(self._waiting.values()))
        hits = self.cache.match(request.keys, (request.prompt_tokens - 1) // spec.block_tokens)
        private = self.blocks_needed(request) - len(request.keys)
        if not self.cache.acquire(request.keys, private):
            return False
        del self._waiting[request.id]
        cached = hits * spec.block_tokens
        counters.queried_tokens += request.prompt_tokens
        counters.hit_tokens += cached
        self._settle(now)
        self._started += 1
        self._prefilling = _Running(request, self._started, cached, private)
        uncached = request.prompt_tokens - cached
        self._prefill_left = self._prefill_whole = (
            spec.prefill_overhead_s + uncached / spec.prefill_tokens_per_s
        )
        self._prefill_steps = -(-uncached // spec.chunk_tokens) if spec.chunk_tokens else 0
        self._events.append(Event(_STARTED, now, request.id, 0, cached))
        self._replan()
        return True

    def _settle(self, now: float) -> None:
        """Bring step count, prefill and busy times up to `now`; no event may lie before it."""
        elapsed = now - self._since
        if not elapsed:
            return
        self._since = now
        if self._prefilling is None and not self._decoding:
            return
        self.counters.busy_s += elapsed
        if self._prefilling is not None:
            self.counters.prefill_busy_s += elapsed
            self._prefill_left = max(0.0, self._prefill_left - elapsed * self._prefill_rate)
        self._steps += elapsed * self._decode_rate

    def _replan(self) -> None:
        """Set the rates and the next times after what runs has changed."""
        spec = self.spec
        batch = len(self._decoding)
        step = spec.step_s + spec.step_per_request_s * batch
        self._decode_rate = 1 / step if batch else 0.0
        self._prefill_rate = 1.0
        self._prefill_at = inf
        if self._prefilling is not None:
            if batch and self._prefill_steps:
                shared = self._prefill_whole + self._prefill_steps * step
                self._prefill_rate = self._prefill_whole / shared
                self._decode_rate = self._prefill_steps / shared
            self._prefill_at = self._since + self._prefill_left / self._prefill_rate
        self._plan_milestone()

    def _plan_milestone(self) -> None:
        milestones = self._milestones
        while milestones and milestones[0][2].gone:
            heappop(milestones)
        if not milestones:
            self._milestone_at = inf
            return
        self._milestone_at = self._since + max(0.0, milestones[0][0] - self._steps) / self._decode_rate

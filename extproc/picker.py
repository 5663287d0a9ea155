"""From the first bytes of a request to a pick: the one place where prompt, prefix, routing and pool meet.

Synchronous and without IO; the clock and the randomness are passed in. What differs between two pools is
held by their `Target`; `use` replaces all targets at once, so a request sees one configuration from start to
end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import copy
from typing import NamedTuple

from extproc import prompt as prompts
from extproc.address import named_in, parse_endpoint
from extproc.config import Match
from extproc.metrics import Metrics, PoolMetrics
from extproc.pool.pool import InFlight, Pool
from extproc.prefix import BlockKeys, block_keys
from extproc.prompt import Prompt
from extproc.routing import Strategy
from extproc.stream import Answer, Question, Refused

_MOST_REMEMBERED_ROUTES = 1024
"""Route names come from the gateway's configuration, not from clients, but a bound costs nothing."""


class Target(NamedTuple):
    """A pool and how requests are sent to it."""

    pool: Pool
    strategy: Strategy
    match: Match | None
    metrics: PoolMetrics
    honours_subset: bool = True
    """Pick only among the endpoints that the gateway's metadata names, where it names some."""


class Picked(NamedTuple):
    """What is told of a pick whose prompt has block keys."""

    pool: str
    keys: BlockKeys
    address: str
    """The first choice."""
    at: float
    """Seconds of the picker's clock."""
    length: int
    """Bytes of body that were seen."""


class Pick:
    """A pick that was taken: in flight on its endpoint until released (`extproc.stream.Pinned`)."""

    __slots__ = ("_clock", "_computed", "_first", "_keys", "_request", "_target", "destination")

    def __init__(
        self,
        target: Target,
        request: InFlight,
        ranked: Sequence[str],
        keys: BlockKeys | None,
        clock: Callable[[], float],
    ) -> None:
        self.destination = ",".join(ranked)
        self._first = ranked[0]
        self._target = target
        self._request = request
        self._keys = keys
        self._computed = False
        self._clock = clock

    def answered(self, served: str, status: int, tried: bool = True) -> None:
        """Moves the in-flight count to the endpoint that served, and tells the pool who did, and who did not
        though it was `tried`."""
        target, first, now = self._target, self._first, self._clock()
        keys, self._keys = self._keys, None
        self._computed = status < 400
        if served != first:
            served = _address(served)
        if not served:
            target.metrics.served_unknown()
            return
        if served == first:
            target.metrics.served_first()
            # A 503 reached the client: every endpoint of the retry list gave one, or the only one did.
            if status != 503:
                target.pool.served(first, now)
            return
        self._request.move(served, now)
        if self._computed and keys is not None and served in target.pool.addresses:
            target.strategy.served(keys, served)
        if tried:
            target.metrics.served_retry()
            target.pool.missed(first, now, self._request.taken_at)
        else:
            target.metrics.served_untried()
        target.pool.served(served, now)

    def release(self) -> None:
        """The request is over."""
        self._request.release(self._clock(), self._computed)


def _address(text: str) -> str:
    """An endpoint as the pool spells it; empty where the text is none, which says nothing of who served."""
    try:
        return parse_endpoint(text)
    except ValueError:
        return ""


class Picker:
    """Answers the question of an exchange: where should this request go?

    `clock` gives monotonic seconds, `draw` breaks ties.
    """

    def __init__(
        self,
        metrics: Metrics,
        clock: Callable[[], float],
        draw: random.Random,
        tell: Callable[[Picked], None] | None = None,
    ) -> None:
        """`tell` hears every pick with block keys. It is called on the path of a request."""
        self._metrics = metrics
        self._clock = clock
        self._draw = draw
        self._tell = tell
        self.keys_always = False
        """Make block keys also for strategies that do not look at them, to be told."""
        self._targets: tuple[Target, ...] = ()
        self._allowed: dict[tuple[str, str], tuple[Target, ...]] = {}
        self.needs_hint = False
        """Some pool is chosen by gRPC metadata, so it must be read."""

    def use(self, targets: Sequence[Target]) -> None:
        """Route by these targets from now on. Requests in flight keep what they were given."""
        self._targets = tuple(targets)
        self._allowed = {}
        self.needs_hint = any(t.match is not None and t.match.metadata is not None for t in targets)

    @property
    def targets(self) -> tuple[Target, ...]:
        """What requests are routed to, in the order in which pools are tried."""
        return self._targets

    def draws(self) -> random.Random:
        """Draws what the next picks will draw. They are drawn again by those: nothing changes here."""
        return copy(self._draw)

    def pick(self, question: Question, hint: str) -> Answer:
        """Where this request goes. `hint` is the gRPC metadata `x-warmroute-pool`, empty if there is none."""
        began = self._clock()
        origin, body, complete = question
        prompt = prompts.read(origin.path, body, complete, origin.encoding) if body else None
        self._metrics.read(prompt, len(body))
        target = self._target(origin.route, hint, prompt)
        if target is None:
            self._metrics.unmatched()
            return None
        subset = origin.subset if target.honours_subset else None
        answer = self._pick_in(target, prompt, len(body), subset)
        target.metrics.took(self._clock() - began)
        return answer

    def _pick_in(
        self, target: Target, prompt: Prompt | None, length: int, subset: tuple[str, ...] | None
    ) -> Answer:
        pool = target.pool
        if not pool.synced and subset is None:
            target.metrics.reason("unpinned")
            return None
        keys: BlockKeys | None = None
        if prompt is not None and (target.strategy.wants_keys or self.keys_always):
            keys = block_keys(prompt, target.strategy.prefix_length)
        now = self._clock()
        only = None if subset is None else named_in(subset, pool.addresses)
        pick = target.strategy.pick(keys, pool.snapshot(now, only), self._draw)
        if not pick.ranked:
            target.metrics.reason(pick.reason)
            if pick.reason == "shed":
                return Refused(429, "every endpoint is at its limit of requests in flight", "overloaded", 1)
            among = "" if only is None else " of those that the gateway names"
            return Refused(503, f"no endpoint{among} is ready", "no_endpoint")
        target.metrics.reason(pick.reason, pool.node_cache(pick.ranked[0]))
        if keys is not None and self._tell is not None:
            self._tell(Picked(pool.name, keys, pick.ranked[0], now, length))
        taken = pool.take(pick.ranked[0], now, pick.uncached)
        return Pick(target, taken, pick.ranked, keys, self._clock)

    def _target(self, route: str, hint: str, prompt: Prompt | None) -> Target | None:
        """The pool: the route allows some, the model chooses among these and never beyond."""
        allowed = self._allowed.get((route, hint))
        if allowed is None:
            allowed = tuple(t for t in self._targets if t.match is None or t.match.allows(route, hint))
            if len(self._allowed) < _MOST_REMEMBERED_ROUTES:
                self._allowed[route, hint] = allowed
        if len(allowed) == 1 and (allowed[0].match is None or not allowed[0].match.models):
            return allowed[0]
        model = prompt.scope.model if prompt is not None else ""
        for target in allowed:
            if target.match is not None and target.match.lists(model):
                return target
        return next((t for t in allowed if t.match is None or not t.match.models), None)

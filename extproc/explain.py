"""What the router would do with one request, and why: the path of `extproc.picker`, walked without a trace.

Pure: the clock's time and the randomness are passed in, and neither pool nor strategy is as much as told
that they were asked. An explanation is no traffic.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from extproc import prompt as prompts
from extproc import reasons
from extproc.address import named_in
from extproc.config import Match
from extproc.explanation import Block, Endpoint, Explanation, Pool, Prompt, Scope, Segment
from extproc.pool.pool import Pool as LivePool
from extproc.pool.snapshot import Snapshot
from extproc.prefix import BlockKeys, block_keys
from extproc.prompt import RAW, TEXT, TOKENS
from extproc.routing import Strategy
from extproc.routing.fixed_prefix import Placement
from extproc.routing.pick import Foreseen
from extproc.routing.prefix_aware import Weighing
from extproc.routing.rendezvous import weights
from extproc.routing.sent import TOKEN_BYTES, holders

MAX_BODY_BYTES = 16 * 1024 * 1024
"""A longer body is not explained: it is as large as the largest message that is taken by default."""

_WORDS = {
    *("system", "developer", "user", "assistant", "tool", "function"),
    *("audio", "audio_url", "document", "file", "image", "image_embeds", "image_pil", "image_url"),
    *("input_audio", "input_file", "input_image", "refusal", "reasoning", "redacted_thinking", "thinking"),
    *("tool_reference", "tool_use", "video", "video_url", "computer_call", "custom_tool_call"),
    *("file_search_call", "function_call", "item_reference", "mcp_call", "web_search_call"),
    *("conversation", "previous_response_id", "prompt"),
}
"""Roles and types that are shown. Others may be anything that a client wrote, text of a prompt too."""
_OPEN_TAGS = ("text/message/", "part/", "item/", "state/")
"""Beginnings of the tags of segments that end in such a word."""


class ExplainError(ValueError):
    """There is nothing to explain; the text says what to ask instead."""


class Target(Protocol):
    """A pool that requests may go to (`extproc.picker.Target`)."""

    @property
    def pool(self) -> LivePool:
        """Its endpoints."""
        ...

    @property
    def strategy(self) -> Strategy:
        """How one is picked."""
        ...

    @property
    def match(self) -> Match | None:
        """Which requests it takes."""
        ...

    @property
    def honours_subset(self) -> bool:
        """Whether endpoints that the gateway names are the only ones."""
        ...


class Asked(NamedTuple):
    """A request to explain."""

    body: bytes
    path: str = ""
    """The request's path; empty: the API is told by the body's shape."""
    complete: bool = True
    """Nothing follows the body."""
    encoding: str = ""
    """The request's Content-Encoding."""
    pool: str | None = None
    """The pool that takes it; None: the one that its model chooses."""
    show_text: bool = False
    """Show the text of the content."""
    route: str | None = None
    """Name of the gateway's route that brings it; None: any, as far as pools are concerned."""
    subset: tuple[str, ...] | None = None
    """Endpoints that the gateway names; None: all."""


def explain(asked: Asked, targets: Sequence[Target], now: float, draw: random.Random) -> Explanation:
    """What would become of a request that came at `now`.

    `draw` breaks ties: one that draws what the next pick will draw makes the answer that of the next pick.
    Without targets only the prompt is explained. Raises `ExplainError` if the pool that is asked for is
    unknown, or more than one could take the request.
    """
    read = prompts.read(asked.path, asked.body, asked.complete, asked.encoding) if asked.body else None
    notes: list[str] = []
    if read is not None and read.scope.partial:
        notes.append(reasons.PARTIAL)
    if read is None and asked.body and asked.encoding:
        notes.append(reasons.NOT_DECODED)
    if not targets:
        keys = None if read is None else block_keys(read)
        return Explanation(len(asked.body), _prompt(read, keys, asked, None), None, (), tuple(notes))
    target, how = _target(targets, asked, "" if read is None else read.scope.model)
    notes += how
    strategy = target.strategy
    keys = None if read is None else block_keys(read, strategy.prefix_length)
    subset = asked.subset if target.honours_subset else None
    if asked.subset is not None and subset is None:
        notes.append(reasons.SUBSET_IGNORED)
    if not target.pool.synced and subset is None:
        name, length = target.pool.name, strategy.prefix_length
        unknown = Pool(name, strategy.name, length, None, None, None, (), None, (), "unpinned")
        prompt = _prompt(read, keys, asked, None)
        return Explanation(len(asked.body), prompt, unknown, reasons.why(unknown, None), tuple(notes))
    only = None if subset is None else named_in(subset, target.pool.addresses)
    endpoints = target.pool.snapshot(now, only)
    foreseen = strategy.foresee(keys if strategy.wants_keys else None, endpoints, draw)
    notes += _notes(foreseen, endpoints)
    pool = _pool(target, foreseen, endpoints)
    placed_by = f"{foreseen.key:016x}" if isinstance(foreseen, Placement) else None
    return Explanation(
        len(asked.body),
        _prompt(read, keys, asked, foreseen),
        pool,
        reasons.why(pool, placed_by, subset=only is not None),
        tuple(notes),
    )


def _target(targets: Sequence[Target], asked: Asked, model: str) -> tuple[Target, list[str]]:
    """The pool asked for; else the one that the model chooses among those of the route, and a note of it if
    the route is not known."""
    names = ", ".join(target.pool.name for target in targets)
    if asked.pool is not None:
        for target in targets:
            if target.pool.name == asked.pool:
                return target, []
        raise ExplainError(f"pool {asked.pool!r} is unknown; there are: {names}")
    if asked.route is not None:
        targets = [
            target for target in targets if target.match is None or target.match.allows(asked.route, "")
        ]
        if not targets:
            raise ExplainError(f"no pool takes requests of route {asked.route!r}; there are: {names}")
        names = ", ".join(target.pool.name for target in targets)
    elif len(targets) == 1:
        return targets[0], []
    of_model = [target for target in targets if target.match is not None and target.match.lists(model)]
    takes_any = [target for target in targets if target.match is None or not target.match.models]
    candidates = of_model or takes_any
    if asked.route is not None and candidates:
        return candidates[0], []
    if len(candidates) != 1:
        said = "several pools could take this request" if candidates else "no pool lists this request's model"
        raise ExplainError(f"{said}: say which; there are: {names}")
    return candidates[0], [reasons.chosen_by_model(candidates[0].pool.name)]


# --- The prompt ---


def _prompt(
    read: prompts.Prompt | None, keys: BlockKeys | None, asked: Asked, foreseen: Foreseen | None
) -> Prompt | None:
    if read is None or keys is None:
        return None
    scope = read.scope
    return Prompt(
        read.api,
        Scope(scope.model, scope.adapter, bool(scope.salt), scope.tools.hex(), scope.partial),
        tuple(_segment(one, asked.show_text) for one in read.content),
        _blocks(keys, foreseen),
    )


def _segment(segment: prompts.Segment, show_text: bool) -> Segment:
    text = _text(segment) if show_text else None
    return Segment(_kind(segment.tag, show_text), len(segment.data), segment.closed, text)


def _kind(tag: bytes, show_text: bool) -> str:
    """A segment's tag, without what may be text of the prompt."""
    kind = tag.decode(errors="replace")
    for begin in _OPEN_TAGS:
        if kind.startswith(begin) and not show_text:
            word = kind.removeprefix(begin)
            return begin.rstrip("/") if not word else kind if word in _WORDS else begin + "other"
    return kind


def _text(segment: prompts.Segment) -> str:
    tag, data, _ = segment
    if tag == TOKENS:
        return " ".join(map(str, np.frombuffer(data, dtype="<i8").tolist()))
    return data.decode(errors="replace") if tag.startswith((TEXT, RAW, b"fields")) else data.hex()


def _blocks(keys: BlockKeys, foreseen: Foreseen | None) -> tuple[Block, ...]:
    tokens = [end // TOKEN_BYTES for end in keys.ends]
    sent_to: Iterable[int | None] = [None] * len(tokens)
    shared: Iterable[bool | None] = [None] * len(tokens)
    if isinstance(foreseen, Weighing) and foreseen.weighed.match is not None:
        match = foreseen.weighed.match
        known = [holders(entry) for entry in match.entries]
        sent_to = known + [0] * (len(tokens) - len(known))
        shared = [0 < match.popular >= number for number in tokens]
    return tuple(
        Block(f"{key:016x}", end, token, bisect_right(keys.segments, at) + 1, count, share)
        for at, (key, end, token, count, share) in enumerate(
            zip(keys.keys, keys.ends, tokens, sent_to, shared, strict=True)
        )
    )


# --- The pool ---


def _pool(target: Target, foreseen: Foreseen, endpoints: Snapshot) -> Pool:
    pool, strategy, pick = target.pool, target.strategy, foreseen.pick
    tokens = shared = None
    if isinstance(foreseen, Weighing) and foreseen.weighed.match is not None:
        tokens, shared = round(foreseen.weighed.length), round(foreseen.weighed.match.popular)
    return Pool(
        pool.name,
        strategy.name,
        strategy.prefix_length,
        foreseen.bound,
        tokens,
        shared,
        _endpoints(pool, foreseen, endpoints),
        pick.ranked[0] if pick.ranked else None,
        pick.ranked[1:],
        pick.reason,
    )


def _endpoints(pool: LivePool, foreseen: Foreseen, endpoints: Snapshot) -> tuple[Endpoint, ...]:
    size = len(endpoints)
    choices = {address: number for number, address in enumerate(foreseen.pick.ranked, 1)}
    suspects = pool.suspects
    places: dict[str, int] = {}
    if isinstance(foreseen, Placement):
        places = {address: number for number, address in enumerate(foreseen.order, 1)}
    nothing = [None] * size
    cached: Sequence[int | None] = nothing
    to_compute: Sequence[int | None] = nothing
    growth: Sequence[float | None] = nothing
    if isinstance(foreseen, Weighing):
        weighed = foreseen.weighed
        growth = np.round(weighed.growth / weighed.growth.min(), 3).tolist()
        if weighed.match is not None:
            cached, to_compute = _whole(weighed.length - weighed.uncached), _whole(weighed.uncached)
    waiting = np.zeros(size) if endpoints.queues is None else endpoints.queues.tokens
    shares = np.ones(size) if endpoints.ease is None else np.round(endpoints.ease, 3)
    return tuple(
        Endpoint(
            address,
            in_flight,
            eligible,
            address in suspects,
            full,
            share,
            waits,
            choices.get(address),
            cached[at],
            to_compute[at],
            growth[at],
            places.get(address),
        )
        for at, (address, in_flight, eligible, full, share, waits) in enumerate(
            zip(
                endpoints.addresses,
                endpoints.in_flight.tolist(),
                endpoints.eligible.tolist(),
                foreseen.full.tolist(),
                shares.tolist(),
                _whole(waiting),
                strict=True,
            )
        )
    )


def _whole(figures: NDArray[np.float64]) -> list[int]:
    whole: list[int] = np.rint(figures).astype(np.int64).tolist()
    return whole


def _notes(foreseen: Foreseen, endpoints: Snapshot) -> list[str]:
    """What counts beside the figures of the endpoints: what other routers may have sent."""
    queues = endpoints.queues
    if queues is None or not isinstance(foreseen, Weighing):
        return []
    notes = []
    if queues.unseen >= 1.0:
        notes.append(reasons.unseen(round(queues.unseen)))
    match = foreseen.weighed.match
    if match is not None and queues.known_share < 1.0:
        home = endpoints.addresses[int(weights(match.home_key, endpoints.hashes).argmax())]
        notes.append(reasons.not_all_known(queues.known_share, home))
    return notes

"""Explanations in words: why an endpoint was chosen, from the figures that are shown beside it.

Sentences tell the figures that decided, and nothing that is not among them.
"""

from __future__ import annotations

from extproc.explanation import Endpoint, Pool
from extproc.routing.prefix_aware import ABOUT_EQUAL

PARTIAL = (
    "The body does not show all of model, adapter, salt and tools: a longer part of it may have other block"
    " keys."
)
AT_REST = (
    "No router was asked: nothing is in flight here and nothing is remembered, as in a router that has just"
    " started. --url asks one that runs."
)
SUBSET_IGNORED = (
    "The pool ignores what endpoints the gateway names (`endpointSubset: false`): all of its own are"
    " considered."
)

NOT_DECODED = (
    "The body cannot be decoded as its Content-Encoding says: gzip, deflate, br and zstd are known, three of"
    " them in a row at most."
)


def chosen_by_model(name: str) -> str:
    """The pool was not named."""
    return (
        f"Pool {name} is the one that the model leads to, if the gateway's part of `match` allows it; --route"
        " or --pool says more."
    )


def unseen(tokens: int) -> str:
    """Other routers may have sent so many tokens."""
    return (
        f"Other routers may have sent {tokens:,} tokens that this one does not know of yet: they are poured"
        " over the shortest queues."
    )


def not_all_known(share: float, home: str) -> str:
    """Of the traffic only this share is known here; `home` is the prompt's."""
    return (
        f"This router knows of {share:.0%} of the traffic. Another one has probably sent the prompt to its"
        f" home, {home}, if it is known at all: that counts in its favour."
    )


def why(pool: Pool, key: str | None, *, subset: bool = False) -> tuple[str, ...]:
    """Why the request goes to `pool.first`, or to nobody. `key` is what places it, with a prefix length;
    with `subset` the gateway named the endpoints that may be picked."""
    if pool.reason == "unpinned":
        return (
            "The pool's endpoints are not known yet: the request passes unpinned, and the gateway routes it.",
        )
    if pool.reason == "empty" and subset:
        return (
            "None of the endpoints that the gateway names is a ready one of the pool: the request is refused"
            " with 503.",
        )
    if pool.reason == "empty":
        return ("No endpoint of the pool is ready: the request is refused with 503.",)
    if pool.reason == "shed":
        least = min(one.in_flight for one in pool.endpoints if one.eligible)
        return (
            f"Every endpoint that may be chosen has {_count(least, 'request')} in flight or more, as many as"
            " `shed` allows: the request is refused with 429.",
        )
    chosen = next(one for one in pool.endpoints if one.address == pool.first)
    if pool.reason == "random":
        others = [one for one in pool.endpoints if one.eligible and not one.full]
        return (
            f"Chance chose {chosen.address} of {_count(len(others), 'endpoint')} that may be first choice;"
            " the next request goes anywhere.",
        )
    if key is not None:
        return _by_place(pool, chosen, key)
    if pool.reason == "load":
        return _by_load(pool, chosen)
    said = {"prefix": _stays, "spill": _leaves, "new": _is_new}[pool.reason]
    return tuple(said(pool, chosen))


# --- Prompts of any length ---


def _stays(pool: Pool, chosen: Endpoint) -> list[str]:
    at = chosen.address
    have = f"{at} was sent {_of_prompt(pool, chosen)}"
    rivals = [one for one in pool.endpoints if _same_tier(one, chosen) and one is not chosen]
    if not rivals:
        return [f"{have}, and no other endpoint {_of_tier(chosen)}."]
    rival = min(rivals, key=lambda one: (_growth(one), one.to_compute))
    if _cached(rival) >= _cached(chosen):
        return [f"{have}, and so was {rival.address}. {_compared(pool, chosen)}"]
    anew = _to_do(rival)
    if rival.waiting:
        anew += f", where {_tokens(rival.waiting)} wait"
    if not chosen.waiting:
        return [f"{have}, and nothing waits there. The next best is {anew}."]
    costs = "costs about as much as" if _growth(rival) <= ABOUT_EQUAL * _growth(chosen) else "costs less than"
    return [f"{have}. {_tokens(chosen.waiting)} wait there, which {costs} {anew}."]


def _leaves(pool: Pool, chosen: Endpoint) -> list[str]:
    holder = min(pool.endpoints, key=lambda one: (-_cached(one), _growth(one)))
    if _cached(holder) <= _cached(chosen):
        return [f"Who was sent more of the prompt is not in the pool now. {_compared(pool, chosen)}"]
    said = f"{holder.address} was sent {_of_prompt(pool, holder)}, but "
    if not _same_tier(holder, chosen):
        return [f"{said}{_out_of_tier(pool, holder)}. {_compared(pool, chosen)}"]
    if holder.share < chosen.share:
        said += f"it is new, and should get {holder.share:.0%} of what the others get"
    else:
        said += f"{_tokens(holder.waiting)} wait there and {_in_flight(holder)}"
    return [f"{said}. That costs more than {_to_do(chosen)}."]


def _is_new(pool: Pool, chosen: Endpoint) -> list[str]:
    most = max(_cached(one) for one in pool.endpoints)
    if not most:
        known = "No endpoint was sent any of this prompt."
    else:
        known = (
            "No endpoint was sent more of this prompt than what many requests begin with, its first"
            f" {_tokens(pool.shared_tokens or 0)}."
        )
    return [known, _compared(pool, chosen)]


def _compared(pool: Pool, chosen: Endpoint) -> str:
    """Why `chosen` comes first among those that may."""
    ties = _ties(pool, chosen)
    if len(ties) > 1:
        order = "chance" if pool.tokens is None else "the HRW order of the first block that is not shared"
        same = _count(len(ties), "endpoint")
        return f"It costs about the same on {same}, and {order} puts {chosen.address} first."
    return (
        f"It costs least on {chosen.address}: {_tokens(chosen.to_compute or 0)} to compute,"
        f" {_tokens(chosen.waiting)} wait there and {_in_flight(chosen)}."
    )


def _ties(pool: Pool, chosen: Endpoint) -> list[Endpoint]:
    among = [one for one in pool.endpoints if _same_tier(one, chosen)]
    least = min(map(_growth, among))
    return [one for one in among if _growth(one) <= ABOUT_EQUAL * least]


def _to_do(one: Endpoint) -> str:
    what = f"{_tokens(one.to_compute or 0)} of it" if one.cached else "the prompt anew"
    return f"computing {what} on {one.address}"


def _of_prompt(pool: Pool, one: Endpoint) -> str:
    if not one.to_compute:
        return f"all of the prompt's {_tokens(pool.tokens or 0)} before"
    return f"{_cached(one):,} of the prompt's {_tokens(pool.tokens or 0)} before"


# --- By a prefix length, and by load ---


def _by_place(pool: Pool, chosen: Endpoint, key: str) -> tuple[str, ...]:
    order = sorted(pool.endpoints, key=lambda one: one.place or 0)
    said = (
        f"Up to its character {pool.prefix_length:,} the prompt has the key {key}, in whose HRW order"
        f" {order[0].address} comes first"
    )
    home = next((one for one in order if one.eligible), order[0])
    if home is not order[0]:
        said += f", which is kept out because it did not serve, so {home.address} does"
    if not chosen.full:
        if chosen is home:
            return (f"{said}. It has {_in_flight(home, 'has')} and its bound is {_bound(pool, home)}.",)
        return (
            f"{said}. It has {_in_flight(home, 'has')} and its bound is {_bound(pool, home)};"
            f" {chosen.address} is the next in that order with room.",
        )
    return (
        f"{said}. No endpoint has room under the bound of {_number(pool.bound)}, so the least busy takes it:"
        f" {chosen.address}, with {_in_flight(chosen, 'has')}.",
    )


def _by_load(pool: Pool, chosen: Endpoint) -> tuple[str, ...]:
    unknown = "Nothing is known of the prompt. " if pool.strategy == "PREFIX_AWARE" else ""
    if chosen.growth is not None:
        return (f"{unknown}{_compared(pool, chosen)}",)
    among = [one for one in pool.endpoints if _same_tier(one, chosen)]
    ties = [one for one in among if _load(one) <= _load(chosen)]
    eased = ", for the share that each should get" if any(one.share < 1 for one in among) else ""
    said = f"{unknown}{chosen.address} has {_in_flight(chosen, 'has')}"
    if len(ties) > 1:
        return (f"{said}, and none has fewer{eased}; chance chose among {_count(len(ties), 'endpoint')}.",)
    return (f"{said}, the fewest{eased}.",)


def _load(one: Endpoint) -> float:
    return (one.in_flight + 1) / one.share


def _bound(pool: Pool, one: Endpoint) -> str:
    return _number(max(1.0, (pool.bound or 0.0) * one.share))


# --- What endpoints may do ---


def _same_tier(one: Endpoint, other: Endpoint) -> bool:
    return (one.eligible, one.full) == (other.eligible, other.full)


def _of_tier(one: Endpoint) -> str:
    return "may be first choice now" if one.eligible and not one.full else "is better off"


def _out_of_tier(pool: Pool, one: Endpoint) -> str:
    if not one.eligible:
        return "it is kept out for a while because it did not serve"
    return f"it is full: it has {_in_flight(one, 'has')} where {_number(pool.bound)} are the limit"


def _cached(one: Endpoint) -> int:
    return one.cached or 0


def _growth(one: Endpoint) -> float:
    return one.growth or 0.0


# --- Numbers ---


def _requests(pool: Pool) -> str:
    return f"{_number(pool.bound)} requests in flight"


def _in_flight(one: Endpoint, verb: str = "is") -> str:
    count = _count(one.in_flight, "request")
    if verb == "has":
        return f"{count} in flight"
    return f"{count} {'is' if one.in_flight == 1 else 'are'} in flight"


def _tokens(number: int) -> str:
    return _count(number, "token")


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"

"""What an explanation says: of the request, of the pool's endpoints, and of the choice among them.

Plain data that goes over HTTP as JSON, field by field as here. Sizes are bytes of content unless they are
said to be tokens, which the router takes to be four bytes each. Nothing holds text of a prompt but the
fields called `text`, which are None unless they were asked for.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scope:
    """What keeps equal content apart."""

    model: str
    """Empty if there is none, as the adapter."""
    adapter: str
    salt: bool
    """Whether there is one; never which."""
    tools: str
    """Digest of the tools and of what else is rendered around the messages, in hex; empty without."""
    partial: bool
    """The body was cut, and not all four were seen by then."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A typed piece of content, such as a message's text."""

    kind: str
    """As it enters the chain; `…/other` for a role or type that is not a usual one."""
    bytes: int
    closed: bool
    """False where the body was cut in it, or may have been."""
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Content from the start up to a point, and the key that stands for it."""

    key: str
    """64 bits in hex."""
    end: int
    tokens: int
    """To its end, from the start."""
    segment: int
    """In which it ends, counted from 1."""
    sent_to: int | None = None
    """Endpoints of the pool that were sent a prompt with it; None where that is not remembered."""
    shared: bool | None = None
    """Whether many requests begin with it; None where that is not remembered."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A body that was understood."""

    api: str
    scope: Scope
    content: tuple[Segment, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint at this moment, for this prompt."""

    address: str
    in_flight: int
    """Requests, by its own report too."""
    eligible: bool
    """False: it did not serve as first choice, and is kept out for a while."""
    suspect: bool
    """It did not serve as first choice, and has not served since."""
    full: bool
    """It has as many requests in flight as make it come after others, or take no more."""
    share: float
    """Of what it could take, what it should get: below 1 while it is eased in."""
    waiting: int
    """Prompt tokens predicted to wait there."""
    choice: int | None
    """1: the first choice, 2: the first to retry on, and so on; None: not in the list."""
    cached: int | None = None
    """Tokens of the prompt that it was sent before; this and what follows are None where the strategy does
    not go by them."""
    to_compute: int | None = None
    """The other tokens of the prompt."""
    growth: float | None = None
    """Of its squared queue if it got the request, in units of the least of all endpoints."""
    place: int | None = None
    """In the HRW order of the prompt's key, from 1."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool, and where in it the request would go."""

    name: str
    strategy: str
    prefix_length: int | None
    """Characters of which the key is made; None: it is not by a fixed length."""
    bound: float | None
    """Requests in flight from which on an endpoint that is not eased in is full; None: none ever is."""
    tokens: int | None
    """Of the prompt, as far as it was read; None where the strategy does not count them."""
    shared_tokens: int | None
    """At the start of the prompt, with which many requests begin."""
    endpoints: tuple[Endpoint, ...]
    """In the order of the pool."""
    first: str | None
    """The endpoint chosen; None: the request is not pinned, or refused."""
    retry: tuple[str, ...]
    """Where the gateway would go if that one fails, in this order."""
    reason: str
    """As in the label `reason` of `extproc_requests_total`."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the router would do with one request, and why."""

    bytes: int
    """Of the body as it came."""
    prompt: Prompt | None
    """None: the body was not understood."""
    pool: Pool | None
    """None: no pool was asked for."""
    why: tuple[str, ...]
    """Sentences: the choice."""
    notes: tuple[str, ...]
    """Sentences: what else to know of it."""

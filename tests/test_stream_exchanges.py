"""Every way in which a gateway may send a request, against a model of that gateway's side."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.messages import BodyMode
from extproc.stream import HELD_BYTES, Answer, Exchange, Question, Refused
from tests.gateway_model import Envoy, Request, Setup, every_setup

PIN = "10.0.0.1:8000,10.0.0.2:8000"
FIRST = "10.0.0.1:8000"

SETUPS = every_setup()

SHARE = 5
"""Each test takes one setup in so many, another one for each request; the property test draws from all."""

BYTES = bytes(range(251)) * 800


@dataclass
class Pin:
    destination: str = PIN
    served: list[tuple[str, int, bool]] = field(default_factory=list)
    released: int = 0

    def answered(self, served: str, status: int, tried: bool) -> None:
        self.served.append((served, status, tried))

    def release(self) -> None:
        self.released += 1


@dataclass
class Router:
    answer: Answer
    asked: list[Question] = field(default_factory=list)
    unexpected: int = 0

    def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        return self.answer

    def count(self) -> None:
        self.unexpected += 1


REQUESTS = {
    "GET": Request(chunks=None),
    "small": Request(),
    "empty": Request(chunks=()),
    "chunks": Request(chunks=(BYTES[:3000], BYTES[:1], BYTES[:70_000], b"")),
    "long": Request(chunks=(BYTES[:100_000], BYTES[:150_000]), length_known=False),
    "trailers": Request(chunks=(b"abc", b"def"), trailers=True, answer_trailers=True),
    "trailers alone": Request(chunks=(), trailers=True),
    "answered early": Request(chunks=(BYTES[:100_000],) * 3, early=True),
    "upgrade": Request(chunks=(b"frame",) * 3, open_ended=True, answer=(b"frame",) * 3),
    "no answer body": Request(answer=()),
    "long answer": Request(answer=(BYTES[:130_000], BYTES[:5]) * 2),
}


def _run(envoy: Envoy, choose: object) -> None:
    """Let happen what may, in the order that `choose` picks from the names; time passes when it must."""
    for _ in range(1000):
        steps = envoy.steps()
        if not steps:
            return
        names = sorted(name for name in steps if name != "silence") or ["silence"]
        steps[choose(names, steps)]()  # type: ignore[operator]
    raise AssertionError(f"no end: {sorted(envoy.steps())}")


def _in_order(names: list[str], _steps: object) -> str:
    """The request comes whole before anything of the response."""
    return next(name for name in ("begin", "request data", "response headers", *names) if name in names)


def _check(envoy: Envoy, router: Router, pin: Pin) -> None:
    setup, request = envoy.setup, envoy.request
    assert not envoy.waits, "a message was not answered"
    assert envoy.complete
    assert envoy.upstream == request.body
    assert envoy.downstream == b"".join(request.answer)
    assert router.unexpected == 0
    assert len(router.asked) <= 1
    if setup.request_headers:
        assert len(router.asked) == 1 or not _asks(setup, request)
        # Whatever the exchange was asked, it said so in time, unless the table says that it cannot.
        if router.asked and not _may_come_too_late(setup, request):
            assert envoy.pin_at_release == PIN
    for question in router.asked:
        assert request.body.startswith(question.body)
    envoy.exchange.close()
    envoy.exchange.close()
    assert pin.released == len(router.asked)
    assert len(pin.served) <= 1


def _asks(setup: Setup, request: Request) -> bool:
    """Every request is decided, but one without a body that announces one (its trailers say so only where
    they are sent), and one that was answered before its body came."""
    without_body = request.chunks is not None and not request.body and request.trailers
    answered_before = request.early and _may_come_too_late(setup, request)
    return not answered_before and (not without_body or setup.request_trailers)


def _may_come_too_late(setup: Setup, request: Request) -> bool:
    return setup.request_body is BodyMode.STREAMED and not setup.without_waiting and not request.open_ended


@pytest.mark.parametrize("name", REQUESTS)
def test_in_every_setup_every_byte_passes_and_every_message_is_answered_once(name: str) -> None:
    request_ = REQUESTS[name]
    for setup in SETUPS[list(REQUESTS).index(name) % SHARE :: SHARE]:
        pin = Pin()
        router = Router(pin)
        envoy = Envoy(Exchange(router.ask, router.count), setup, request_, FIRST)
        try:
            _run(envoy, _in_order)
            _check(envoy, router, pin)
        except AssertionError as error:
            raise AssertionError(f"{setup}: {error}") from error


@pytest.mark.parametrize("name", [name for name in REQUESTS if name != "upgrade"])
def test_a_gateway_that_does_not_say_how_it_sends_bodies_is_served_too(name: str) -> None:
    """Before 1.33 Envoy did not, and knew neither full duplex nor sending without waiting. Without bodies the
    router waits for one, and the request passes unpinned."""
    for setup in SETUPS:
        modes = (setup.request_body, setup.response_body)
        if setup.without_waiting or BodyMode.FULL_DUPLEX_STREAMED in modes or BodyMode.GRPC in modes:
            continue
        router = Router(Pin())
        setup = replace(setup, told=False)
        envoy = Envoy(Exchange(router.ask, router.count), setup, REQUESTS[name], FIRST)
        _run(envoy, _in_order)
        assert envoy.complete
        assert not envoy.waits
        assert envoy.upstream == REQUESTS[name].body
        assert envoy.downstream == b"".join(REQUESTS[name].answer)
        assert router.unexpected == 0
        assert len(router.asked) <= 1


@given(
    setup=st.sampled_from(SETUPS),
    chunks=st.none() | st.lists(st.integers(0, 90_000).map(lambda size: BYTES[:size]), max_size=4).map(tuple),
    answer=st.lists(st.integers(0, 90_000).map(lambda size: BYTES[:size]), max_size=3).map(tuple),
    trailers=st.booleans(),
    answer_trailers=st.booleans(),
    length_known=st.booleans(),
    early=st.booleans(),
    open_ended=st.booleans(),
    data=st.data(),
)
def test_in_any_order_every_byte_passes_and_every_message_is_answered_once(
    setup: Setup,
    chunks: tuple[bytes, ...] | None,
    answer: tuple[bytes, ...],
    trailers: bool,
    answer_trailers: bool,
    length_known: bool,
    early: bool,
    open_ended: bool,
    data: st.DataObject,
) -> None:
    request = Request(
        chunks,
        trailers and chunks is not None and not open_ended,
        open_ended and chunks is not None,
        length_known,
        answer,
        answer_trailers,
        early,
    )
    pin = Pin()
    router = Router(pin)
    envoy = Envoy(Exchange(router.ask, router.count), setup, request, FIRST)

    def choose(names: list[str], steps: dict[str, object]) -> str:
        return data.draw(st.sampled_from(sorted(steps)), label="then")

    _run(envoy, choose)
    _check(envoy, router, pin)


@pytest.mark.parametrize("answer", ["refuse", "unpinned"])
def test_in_every_setup_a_refusal_is_said_once_and_an_unpinned_request_passes(answer: str) -> None:
    for setup, request in product(SETUPS[:: len(REQUESTS) * SHARE + 1], REQUESTS.values()):
        said: Answer = Refused(503, "no endpoint is ready", "no_endpoint") if answer == "refuse" else None
        router = Router(said)
        envoy = Envoy(Exchange(router.ask, router.count), setup, request, FIRST)
        _run(envoy, _in_order)
        if router.asked and said is not None:
            assert envoy.refused == 1
            assert envoy.exchange.finished
        else:
            assert envoy.upstream == request.body
            assert envoy.downstream == b"".join(request.answer)
            assert not envoy.waits
        assert router.unexpected == 0


def test_a_body_that_is_longer_than_what_is_held_is_keyed_by_its_beginning() -> None:
    for setup in SETUPS:
        if setup.request_body is BodyMode.FULL_DUPLEX_STREAMED and setup.request_headers:
            router = Router(Pin())
            request = Request(chunks=(BYTES[:9000],) * 20)
            envoy = Envoy(Exchange(router.ask, router.count), setup, request, FIRST)
            _run(envoy, _in_order)
            (question,) = router.asked
            assert HELD_BYTES <= len(question.body) < HELD_BYTES + 9000
            assert not question.complete

"""How a list of Kubernetes objects is followed through all that an API server may answer. With a real one:
tests/apiserver.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from extproc.pool.discovery import kubernetes
from extproc.pool.discovery.kubernetes import ApiError, Cluster, Json, Listing, Resource, batches, follow
from extproc.pool.discovery.observer import Trouble

THINGS = Resource("example.com", "v1", "things")
AWAY = aiohttp.ClientConnectionError("connection refused")


def thing(uid: str, version: int = 1) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}, "value": f"{uid}{version}"}


def event(kind: str, item: Json) -> dict[str, Any]:
    return {"type": kind, "object": item}


Answer = Exception | Sequence[Any]
"""What a list holds, or a watch tells before it ends; an exception in it is raised there."""


class Script(Cluster):
    """An API server that answers as a test says, and then no more."""

    def __init__(self, *answers: Answer) -> None:
        self.namespace = "llm"
        self.asked: list[str] = []
        self.over = asyncio.Event()
        self._answers = deque(answers)
        self._version = 100

    async def objects(self, listing: Listing[Any]) -> tuple[dict[str, Any], str]:
        self.asked.append("list")
        items = await self._next()
        return {item["metadata"]["uid"]: listing.read(item) for item in items}, str(self._version)

    @asynccontextmanager
    async def changes(self, listing: Listing[Any], version: str) -> AsyncIterator[AsyncIterator[Json]]:
        self.asked.append(f"watch {version}")
        yield self._events(await self._next())

    async def _next(self) -> Sequence[Any]:
        if not self._answers:
            self.over.set()
            await asyncio.Event().wait()
        answer = self._answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    @staticmethod
    async def _events(answer: Sequence[Any]) -> AsyncIterator[Json]:
        for one in answer:
            if isinstance(one, Exception):
                raise one
            yield one


class Followed:
    """What came of it."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        self.log: list[EventDict] = []
        self.heard: list[str] = []

    def learn(self, objects: Mapping[str, str]) -> None:
        self.seen.append(dict(objects))

    def watching(self, resource: str) -> None:
        self.heard.append(f"{resource} watching")

    def failed(self, resource: str, trouble: Trouble) -> None:
        self.heard.append(f"{resource} {trouble}")

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.log]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "FIRST_BACK_OFF", 0.001)
    monkeypatch.setattr(kubernetes, "LONGEST_BACK_OFF", 0.002)


async def followed(script: Script, name: str = "") -> Followed:
    """Follow until the script is over."""
    found = Followed()
    listing: Listing[str] = Listing(THINGS, "llm", lambda item: str(item["value"]), name=name)
    with capture_logs() as log:
        task = asyncio.create_task(follow(script, listing, found.learn, random.Random(1), found))
        try:
            await asyncio.wait_for(script.over.wait(), 10)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    found.log = log
    return found


async def test_what_was_listed_is_changed_by_what_the_watch_tells() -> None:
    script = Script(
        [thing("a"), thing("b")],
        [
            event("ADDED", thing("c", 101)),
            event("MODIFIED", thing("a", 102)),
            event("DELETED", thing("b", 103)),
        ],
    )
    found = await followed(script)
    assert found.seen == [
        {"a": "a1", "b": "b1"},
        {"a": "a1", "b": "b1", "c": "c101"},
        {"a": "a102", "b": "b1", "c": "c101"},
        {"a": "a102", "c": "c101"},
    ]
    assert script.asked == ["list", "watch 100", "watch 103"]
    assert found.log == []


async def test_a_bookmark_is_no_change_and_is_where_the_next_watch_begins() -> None:
    script = Script([thing("a")], [event("BOOKMARK", thing("", 500))])
    found = await followed(script)
    assert len(found.seen) == 1
    assert script.asked[-1] == "watch 500"


@pytest.mark.parametrize("told", [True, False], ids=["while watching", "when a watch begins"])
async def test_what_is_too_old_to_be_told_is_listed_anew_without_a_word(told: bool) -> None:
    gone = ApiError(410, "Expired")
    script = Script([thing("a")], [gone] if told else gone, [thing("b")])
    found = await followed(script)
    assert found.seen == [{"a": "a1"}, {"b": "b1"}]
    assert script.asked == ["list", "watch 100", "list", "watch 100"]
    assert found.log == []


@pytest.mark.parametrize("status", [401, 429, 502, 503])
async def test_a_server_that_is_busy_or_away_is_asked_on_from_where_the_watch_was(status: int) -> None:
    script = Script([thing("a")], [event("ADDED", thing("b", 7))], ApiError(status, "no"), [])
    found = await followed(script)
    assert script.asked == ["list", "watch 100", "watch 7", "watch 7", "watch 7"]
    assert len(found.seen) == 2


@pytest.mark.parametrize(
    "answer",
    [
        ApiError(404, "not found"),
        ApiError(500, "internal error"),
        ApiError(504, "Too large resource version"),
        [ApiError(500, "etcd event received with PrevKv=nil")],
        [ApiError(429, "too many requests")],
        [event("ADDED", {})],
        [KeyError("type")],
    ],
)
async def test_what_may_mean_that_all_is_different_has_it_listed_anew_and_nothing_forgotten_till_then(
    answer: Answer,
) -> None:
    script = Script([thing("a")], answer, AWAY, [thing("a"), thing("b")])
    found = await followed(script)
    assert script.asked == ["list", "watch 100", "list", "list", "watch 100"]
    assert found.seen == [{"a": "a1"}, {"a": "a1", "b": "b1"}]


async def test_an_outage_is_said_once_and_so_is_its_end() -> None:
    other = TimeoutError()
    script = Script([thing("a")], AWAY, AWAY, other, AWAY, [], [AWAY], [])
    found = await followed(script)
    assert found.events == 2 * ["Kubernetes cannot be asked; what is known stays", "Kubernetes answers again"]
    assert found.log[0]["error"] == "connection refused"
    assert found.seen == [{"a": "a1"}]
    assert found.heard == [
        *4 * ["things unreachable"],
        "things watching",
        "things watching",
        "things unreachable",
        "things watching",
    ]


async def test_each_kind_of_trouble_in_an_outage_is_said_once() -> None:
    starting = ApiError(503, "apiserver is starting")
    script = Script(AWAY, starting, AWAY, starting, ApiError(403, "no"), AWAY, [], [])
    found = await followed(script)
    assert [line["log_level"] for line in found.log] == ["warning", "warning", "error", "info"]


@pytest.mark.parametrize(("answers", "verb"), [([], "list"), ([[thing("a")]], "watch")])
async def test_a_right_that_is_missing_is_named_with_the_rule_that_grants_it(
    answers: list[Answer], verb: str
) -> None:
    found = await followed(Script(*answers, ApiError(403, "forbidden")), name="one")
    (line,) = found.log
    assert line["missing"] == f"{verb} things in namespace llm"
    rule = "{apiGroups: [example.com], resources: [things], resourceNames: [one], verbs: [list, watch]}"
    assert f"a Role in namespace llm with the rule {rule}, bound to the ServiceAccount" in line["remedy"]


async def test_who_may_list_and_not_watch_lists_again_and_again() -> None:
    forbidden = ApiError(403, "forbidden")
    script = Script([thing("a")], forbidden, [thing("b")], forbidden, [thing("c")], forbidden)
    found = await followed(script)
    assert found.seen == [{"a": "a1"}, {"b": "b1"}, {"c": "c1"}]
    assert len(found.log) == 1


async def test_one_object_that_is_not_understood_is_left_out() -> None:
    script = Script([thing("a")], [event("ADDED", {"metadata": {"uid": "b", "resourceVersion": "2"}})])
    found = await followed(script)
    assert found.seen[-1] == {"a": "a1"}
    assert found.events == ["Kubernetes object left out"]


@pytest.mark.parametrize(
    ("listing", "path", "query"),
    [
        (Listing(THINGS, "llm", str), "/apis/example.com/v1/namespaces/llm/things", ()),
        (
            Listing(Resource("", "v1", "pods"), "llm", str, selector="a in (b,c)"),
            "/api/v1/namespaces/llm/pods",
            (("labelSelector", "a in (b,c)"),),
        ),
        (
            Listing(THINGS, "llm", str, name="one"),
            "/apis/example.com/v1/namespaces/llm/things",
            (("fieldSelector", "metadata.name=one"),),
        ),
    ],
)
def test_a_listing_is_asked_for_by_namespace_labels_or_name(
    listing: Listing[str], path: str, query: tuple[tuple[str, str], ...]
) -> None:
    assert (listing.path, listing.query) == (path, query)


async def test_changes_that_follow_each_other_closely_are_taken_over_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubernetes, "BATCH_SECONDS", 0.2)
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    times: asyncio.Queue[float] = asyncio.Queue()

    async def take() -> None:
        async for _ in batches(changed):
            times.put_nowait(loop.time())

    task = asyncio.create_task(take())
    try:
        began = loop.time()
        while loop.time() < began + 0.1:
            changed.set()
            await asyncio.sleep(0.001)
        first, second = [await asyncio.wait_for(times.get(), 10) for _ in range(2)]
        assert first - began < 0.2
        assert second - first >= 0.199
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(times.get(), 0.3)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

"""A list of Kubernetes objects, kept equal to the API server's: listed once, then watched.

Objects are read as plain JSON and cut down at once to what the caller needs of them: a pod is some 10 KB of
which an address and a condition matter. How to reach the API server and who to be there is the client
library's business.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import aiohttp
import orjson
import structlog
import yaml
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration

from extproc.pool.discovery.observer import Observer, Trouble

PAGE = 500
"""Objects of one answer when listing, as kubectl asks for."""

WATCH_SECONDS = 300
"""How long one watch is asked for: credentials and rights are looked at when it begins."""

ANSWER_SECONDS = 30.0
"""Longest wait for a list, or for a watch to begin and to end."""

FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.5, 30.0
"""Seconds between attempts, doubling: each is drawn from the upper half, so that replicas spread out."""

BATCH_SECONDS = 0.25
"""Changes that follow one closer than this are taken over together: a rollout of thousands of pods is
thousands of changes, and to take one over costs milliseconds during which no request is answered."""

_KEEP_ALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""A watch may be silent for long, so the kernel asks: seconds of silence, between questions, and how many may
stay unanswered. A node that vanished is noticed after 30 s, as in client-go, which pings after 30 s."""

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where kubelet puts the namespace of a pod (Kubernetes documentation, "Accessing the API from a pod")."""

FORBIDDEN, GONE = 403, 410
"""Statuses: a right is missing; a watch or a page begins too long ago, so list anew (Kubernetes API
concepts)."""

_PASSING = frozenset({401, 429, 502, 503})
"""Statuses that refuse a watch and say nothing of the objects: it is tried again from where it was. After 403
all is read anew, so that who may list and not watch still learns; after 504 too, which etcd restored from a
backup gives to versions that it has never had."""

_log = structlog.get_logger(__name__)

T = TypeVar("T")
Json = Mapping[str, Any]


class ApiError(Exception):
    """The API server refused; `status` is HTTP's, 0 where it was not reached."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(f"{status} {reason}" if status else reason)


class Resource(NamedTuple):
    """A kind, as a URL and a Role name it."""

    group: str
    """Empty: the core group."""
    version: str
    plural: str


class Listing(NamedTuple, Generic[T]):
    """Which objects, and what of them."""

    resource: Resource
    namespace: str
    """Empty: every namespace."""
    read: Callable[[Json], T]
    """What to keep of an object. May raise what a surprising shape raises: the object is then left out."""
    selector: str = ""
    """Only those with such labels, as in `labelSelector`."""
    name: str = ""
    """Only the one of this name. It is asked for in the way that a rule with `resourceNames` allows."""
    fields: str = ""
    """Only those with such fields, as in `fieldSelector`; not together with `name`."""
    otherwise: str = ""
    """What can be done instead of granting the right, in words."""

    @property
    def path(self) -> str:
        """`/api/v1/namespaces/llm/pods`."""
        group, version, plural = self.resource
        root = f"/apis/{group}" if group else "/api"
        where = f"namespaces/{self.namespace}/" if self.namespace else ""
        return f"{root}/{version}/{where}{plural}"

    @property
    def query(self) -> tuple[tuple[str, str], ...]:
        """What limits the list, as the API server reads it."""
        asked = (
            ("labelSelector", self.selector),
            ("fieldSelector", f"metadata.name={self.name}" if self.name else self.fields),
        )
        return tuple((key, value) for key, value in asked if value)

    @property
    def rule(self) -> str:
        """The rule of a Role that allows to list and watch these, in YAML."""
        named = f", resourceNames: [{self.name}]" if self.name else ""
        group = self.resource.group or '""'
        return f"{{apiGroups: [{group}], resources: [{self.resource.plural}]{named}, verbs: [list, watch]}}"


class Cluster:
    """A connection to the API server, and the namespace that is one's own there."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    async def objects(self, listing: Listing[T]) -> tuple[dict[str, T], str]:
        """All objects by uid, and the version of the list, from which to watch.

        Raises `ApiError`, aiohttp.ClientError, TimeoutError, or ValueError if the answer is not JSON.
        """
        objects: dict[str, T] = {}
        following = ""
        while True:
            query = [*listing.query, ("limit", str(PAGE)), *([("continue", following)] if following else [])]
            async with asyncio.timeout(ANSWER_SECONDS):
                response = await self._get(listing.path, query, ANSWER_SECONDS)
                async with response:
                    page = orjson.loads(await response.read())
            for item in page.get("items") or ():
                _put(objects, item, listing)
            metadata = page["metadata"]
            following = metadata.get("continue") or ""
            if not following:
                return objects, str(metadata["resourceVersion"])

    @asynccontextmanager
    async def changes(self, listing: Listing[T], version: str) -> AsyncIterator[AsyncIterator[Json]]:
        """The changes since `version` as the API server tells them, until it ends the watch; entered once the
        watch has begun.

        Raises as `objects`; an ERROR event is an `ApiError` with its code.
        """
        query = [
            *listing.query,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(WATCH_SECONDS)),
        ]
        response = await self._get(listing.path, query, WATCH_SECONDS + ANSWER_SECONDS)
        async with response:
            _keep_alive(response)
            yield _events(response.content)

    async def create(self, path: str, item: Json) -> Json:
        """What the API server makes of an object that is created at `path`; a review is answered so.

        Raises as `objects`.
        """
        return await self.send("POST", path, item)

    async def send(
        self,
        method: str,
        path: str,
        item: Json | None = None,
        query: Iterable[tuple[str, str]] = (),
        content: str = "application/json",
    ) -> Json:
        """What the API server answers to one request, whose body is `item` in the form that `content` names.

        Raises as `objects`.
        """
        response = await self._call(method, path, list(query), ANSWER_SECONDS, item, content)
        async with response:
            answer: Json = orjson.loads(await response.read())
        return answer

    async def log(self, namespace: str, pod: str, container: str) -> bytes:
        """What a container has printed.

        Raises `ApiError`, aiohttp.ClientError or TimeoutError.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        async with await self._get(path, [("container", container)], ANSWER_SECONDS) as response:
            return await response.read()

    async def _get(self, path: str, query: list[tuple[str, str]], seconds: float) -> aiohttp.ClientResponse:
        return await self._call("GET", path, query, seconds)

    async def _call(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]],
        seconds: float,
        body: Json | None = None,
        content: str = "application/json",
    ) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await self._client.call_api(
            path,
            method,
            query_params=query,
            header_params={"Accept": "application/json, */*", "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=ANSWER_SECONDS),
        )
        if response.status not in (200, 201, 202):
            async with response:
                raise ApiError(response.status, _message(await response.read()) or str(response.reason))
        return response


@asynccontextmanager
async def connected() -> AsyncIterator[Cluster]:
    """The API server of this pod, or outside of a cluster that of the kubeconfig's context.

    Raises `ApiError` saying what was looked for if there is neither, or it cannot be read.
    """
    settings = Configuration()
    try:
        if not await asyncio.to_thread(_reachable):
            raise config.ConfigException(f"there is no {_kubeconfig()}")
        namespace = await asyncio.to_thread(_own_namespace)
        if namespace:
            config.load_incluster_config(client_configuration=settings)
        else:
            namespace = await _use_kubeconfig(settings)
    except (config.ConfigException, OSError) as error:
        raise ApiError(
            0,
            "no Kubernetes: neither a pod's service account nor a kubeconfig (KUBECONFIG, ~/.kube/config)"
            f" can be used: {error}",
        ) from error
    client = ApiClient(settings)
    try:
        yield Cluster(client, namespace)
    finally:
        await client.close()


async def with_cluster(run: Callable[[Cluster], Awaitable[None]], draw: random.Random) -> None:
    """Connect and `run`, again whenever that ends, until cancelled. `draw` spreads the attempts."""
    back_off, complaint = FIRST_BACK_OFF, ""
    while True:
        try:
            async with connected() as cluster:
                await run(cluster)
        except ApiError as error:
            if str(error) != complaint:
                complaint = str(error)
                _log.error("Kubernetes cannot be followed", error=complaint)
        except Exception:
            # Requests go on to the endpoints that are known, and these are not to stay for ever.
            _log.exception("Kubernetes is not followed; trying anew")
        await asyncio.sleep(back_off * draw.uniform(0.5, 1.0))
        back_off = min(2 * back_off, LONGEST_BACK_OFF)


def _reachable() -> bool:
    """Whether anything says where the API server is. Asked first, since the library logs each attempt."""
    files = _kubeconfig().split(os.pathsep)
    return _NAMESPACE.exists() or any(Path(file).expanduser().is_file() for file in files)


async def _use_kubeconfig(settings: Configuration) -> str:
    """Fill `settings` as the kubeconfig says; returns the namespace of its context."""
    try:
        loader: Any = await config.load_kube_config(_kubeconfig(), client_configuration=settings)
    except (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        # The library takes the file for a kubeconfig, and fails wherever it is not one.
        raise config.ConfigException(f"{_kubeconfig()} is not written as one") from error
    return (loader.current_context.get("context") or {}).get("namespace") or "default"


def _kubeconfig() -> str:
    """Path of the kubeconfig, or several of which the library takes what each adds, as kubectl does."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def _own_namespace() -> str:
    """The namespace of the pod that this process runs in; empty outside of a cluster."""
    return _NAMESPACE.read_text().strip() if _NAMESPACE.exists() else ""


async def follow(
    cluster: Cluster,
    listing: Listing[T],
    on_change: Callable[[Mapping[str, T]], None],
    draw: random.Random,
    observer: Observer | None = None,
) -> None:
    """Call `on_change` with the objects by uid now and after every change, until cancelled. It is the same
    mapping each time.

    While the API server cannot be asked nothing is told: what was known before stays. `draw` spreads the
    attempts.
    """
    objects: dict[str, T] = {}
    version = ""
    back_off = FIRST_BACK_OFF
    outage = _Outage(listing, observer)
    while True:
        failed, begun = True, False
        verb = "watch" if version else "list"
        try:
            if not version:
                objects, version = await cluster.objects(listing)
                on_change(objects)
                verb = "watch"
            async with cluster.changes(listing, version) as events:
                begun = True
                outage.over()
                back_off = FIRST_BACK_OFF
                async for event in events:
                    version = str(event["object"]["metadata"]["resourceVersion"])
                    if event["type"] != "BOOKMARK":
                        _apply(objects, event, listing)
                        on_change(objects)
            failed = False
        except ApiError as error:
            # 410: what happened since is not known any more, so all is read anew; and so it is after other
            # refusals, which may mean that the objects are not what they were (a kind that was removed), and
            # after any error told by a watch: from there it would be told again.
            if begun or error.status not in _PASSING:
                version = ""
            failed = error.status != GONE
            if failed:
                outage.goes_on(verb, str(error), "forbidden" if error.status == FORBIDDEN else "refused")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            outage.goes_on(verb, str(error) or type(error).__name__, "unreachable")
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            version = ""
            outage.goes_on(verb, f"not an answer of Kubernetes: {error!r}", "refused")
        # Also after a watch that ended as it should: a server that ends each at once is not to be asked in a
        # circle, and no change is lost meanwhile.
        await asyncio.sleep(back_off * draw.uniform(0.5, 1.0))
        if failed:
            back_off = min(2 * back_off, LONGEST_BACK_OFF)


class _Outage:
    """The time in which objects cannot be followed: said once for each kind of trouble, and once when it is
    over."""

    def __init__(self, listing: Listing[Any], observer: Observer | None) -> None:
        self._listing = listing
        self._observer = observer
        self._said: set[Trouble] = set()

    def goes_on(self, verb: str, error: str, trouble: Trouble) -> None:
        listing = self._listing
        if self._observer is not None:
            self._observer.failed(listing.resource.plural, trouble)
        if trouble in self._said:
            return
        self._said.add(trouble)
        about: dict[str, Any] = {"path": listing.path, "query": dict(listing.query), "error": error}
        if trouble == "forbidden":
            _log.error(
                "Kubernetes forbids it; what is known stays",
                missing=f"{verb} {listing.resource.plural} in namespace {listing.namespace}",
                remedy=f"a Role in namespace {listing.namespace} with the rule {listing.rule},"
                f" bound to the ServiceAccount of this process{listing.otherwise}",
                **about,
            )
        else:
            _log.warning("Kubernetes cannot be asked; what is known stays", **about)

    def over(self) -> None:
        if self._observer is not None:
            self._observer.watching(self._listing.resource.plural)
        if self._said:
            self._said.clear()
            _log.info("Kubernetes answers again", path=self._listing.path)


async def batches(changed: asyncio.Event) -> AsyncIterator[None]:
    """Each time that `changed` is set: at once after a quiet time, and then once in `BATCH_SECONDS`."""
    while True:
        await changed.wait()
        changed.clear()
        yield
        await asyncio.sleep(BATCH_SECONDS)


def _apply(objects: dict[str, T], event: Json, listing: Listing[T]) -> None:
    if event["type"] == "DELETED":
        objects.pop(event["object"]["metadata"]["uid"], None)
    else:
        _put(objects, event["object"], listing)


def _put(objects: dict[str, T], item: Json, listing: Listing[T]) -> None:
    metadata = item["metadata"]
    try:
        objects[metadata["uid"]] = listing.read(item)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        objects.pop(metadata["uid"], None)
        _log.warning(
            "Kubernetes object left out", path=listing.path, name=metadata.get("name"), error=repr(error)
        )


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Json]:
    async for line in _lines(content):
        event = orjson.loads(line)
        if event["type"] == "ERROR":
            status = event["object"]
            raise ApiError(int(status.get("code") or 0), str(status.get("message") or ""))
        yield event


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length: an object may be larger than what the reader takes as one."""
    held = bytearray()
    async for chunk in content.iter_any():
        held += chunk
        *whole, rest = held.split(b"\n")
        held = bytearray(rest)
        for line in whole:
            if line:
                yield bytes(line)


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    """Have the kernel notice when the other side is gone without a word."""
    connection = response.connection
    transport = None if connection is None else connection.transport
    stream = None if transport is None else transport.get_extra_info("socket")
    if stream is None:  # the answer has ended already
        return
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        # Not every system has all of them.
        if (option := getattr(socket, name, None)) is not None:
            stream.setsockopt(socket.IPPROTO_TCP, option, value)


def _message(body: bytes) -> str:
    """The message of a `Status` object; empty if it is none."""
    try:
        return str(orjson.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return ""

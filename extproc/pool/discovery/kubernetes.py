"""A list of Kubernetes objects, kept equal to the API server's: listed once, then watched.

Objects are read as plain JSON and cut down at once to what the caller needs of them: a pod is some 10 KB of
which an address and a condition matter. How to reach the API server and who to be there is the client
library's business.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import aiohttp
import orjson
import structlog
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration

PAGE = 500
"""Objects of one answer when listing, as kubectl asks for."""

WATCH_SECONDS = 300
"""How long one watch is asked for. A connection that died without a word is noticed when it is over."""

ANSWER_SECONDS = 30.0
"""Longest wait for a list, or for a watch to begin and to end."""

FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.5, 30.0
"""Seconds between attempts, doubling: each is drawn from the upper half, so that replicas spread out."""

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where kubelet puts the namespace of a pod (Kubernetes documentation, "Accessing the API from a pod")."""

GONE = 410
"""Status of a watch or a page that begins too long ago: list anew (Kubernetes API concepts)."""

_log = structlog.get_logger(__name__)

T = TypeVar("T")
Json = Mapping[str, Any]


class ApiError(Exception):
    """The API server refused; `status` is HTTP's, 0 where it was not reached."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(f"{status} {reason}" if status else reason)


class Listing(NamedTuple, Generic[T]):
    """Which objects, and what of them."""

    path: str
    """`/api/v1/namespaces/llm/pods`."""
    query: tuple[tuple[str, str], ...]
    """`labelSelector` or `fieldSelector`."""
    read: Callable[[Json], T]
    """What to keep of an object. May raise what a surprising shape raises: the object is then left out."""


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

    async def changes(self, listing: Listing[T], version: str) -> AsyncGenerator[Json, None]:
        """The changes since `version` as the API server tells them, until it ends the watch.

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
            async for line in _lines(response.content):
                event = orjson.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(int(status.get("code") or 0), str(status.get("message") or ""))
                yield event

    async def _get(self, path: str, query: list[tuple[str, str]], seconds: float) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await self._client.call_api(
            path,
            "GET",
            query_params=query,
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=ANSWER_SECONDS),
        )
        if response.status != 200:
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
            raise config.ConfigException("there is no such file")
        namespace = await asyncio.to_thread(_own_namespace)
        if namespace:
            config.load_incluster_config(client_configuration=settings)
        else:
            loader: Any = await config.load_kube_config(_kubeconfig(), client_configuration=settings)
            namespace = (loader.current_context.get("context") or {}).get("namespace") or "default"
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


def _reachable() -> bool:
    """Whether anything says where the API server is. Asked first, since the library logs each attempt."""
    files = _kubeconfig().split(os.pathsep)
    return _NAMESPACE.exists() or any(Path(file).expanduser().is_file() for file in files)


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
) -> None:
    """Call `on_change` with the objects by uid now and after every change, until cancelled.

    While the API server cannot be asked nothing is told: what was known before stays. `draw` spreads the
    attempts.
    """
    objects: dict[str, T] = {}
    version = ""
    back_off = FIRST_BACK_OFF
    complaint = ""

    def answered() -> None:
        nonlocal back_off, complaint
        back_off = FIRST_BACK_OFF
        if complaint:
            complaint = ""
            _log.info("Kubernetes answers again", path=listing.path)

    while True:
        said = ""
        try:
            if not version:
                objects, version = await cluster.objects(listing)
                answered()
                on_change(objects)
            async with aclosing(cluster.changes(listing, version)) as events:
                async for event in events:
                    version = str(event["object"]["metadata"]["resourceVersion"])
                    answered()
                    if event["type"] != "BOOKMARK":
                        _apply(objects, event, listing)
                        on_change(objects)
        except ApiError as error:
            # 410: what happened since is not known any more, so all is read anew; and so it is after other
            # refusals, which may mean that the objects are not what they were (a kind that was removed).
            version = ""
            said = "" if error.status == GONE else str(error)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            said = str(error) or type(error).__name__
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            version = ""
            said = f"not an answer of Kubernetes: {error!r}"
        if said and said != complaint:
            complaint = said
            _log.warning(
                "Kubernetes cannot be asked; what is known stays",
                path=listing.path,
                query=dict(listing.query),
                error=said,
            )
        # Also after a watch that ended as it should: a server that ends each at once is not to be asked in a
        # circle, and no change is lost meanwhile.
        await asyncio.sleep(back_off * draw.uniform(0.5, 1.0))
        if said:
            back_off = min(2 * back_off, LONGEST_BACK_OFF)


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


def _message(body: bytes) -> str:
    """The message of a `Status` object; empty if it is none."""
    try:
        return str(orjson.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return ""

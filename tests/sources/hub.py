"""A Hugging Face Hub of one process: the HTTP interface that huggingface_hub's client calls, over memory.

https://huggingface.co/docs/hub/api and what huggingface_hub 2 sends and expects. Large files lie on a second
origin, as with the real one's CDN, and are reached by signed URLs that expire when the test says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from aiohttp import web

LFS_BYTES = 10_000
"""From this size on a file is in LFS."""


@dataclass
class Repository:
    """Files by path at each commit, and branches."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    private: str = ""
    """The token that may read it; anybody may if empty."""
    gated: bool = False

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """A new commit with exactly these files; returns its 40 hex digits."""
        content = repr((sorted(files.items()), len(self.commits))).encode()
        name = hashlib.sha1(content).hexdigest()
        self.commits[name] = dict(files)
        self.branches[branch] = name
        return name


@dataclass
class Hub:
    """What the server serves, how it misbehaves, and what it was asked."""

    url: str = ""
    cdn: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    page: int = 1000
    """Entries of a page of the tree."""
    signature: int = 1
    """Signed URLs of another number have expired."""
    faults: deque[tuple[int, dict[str, str]]] = field(default_factory=deque)
    """Status and headers of the next answers of the API, instead of the answer."""
    tamper: dict[str, str] = field(default_factory=dict)
    """Headers of the answers of `resolve` that replace the true ones."""
    requests: list[str] = field(default_factory=list)
    """Method and path of every request, `cdn` before those of the second origin."""
    tokens: list[str] = field(default_factory=list)
    """Authorization of every request to the second origin; there should be none."""
    refuse_signed: bool = False
    """Refuse signed URLs that are fresh too."""

    def expire(self) -> None:
        """Let every URL that was signed until now expire."""
        self.signature += 1

    async def revision(self, request: web.Request) -> web.StreamResponse:
        """`/api/{kind}/{repository}` and `/api/{kind}/{repository}/revision/{revision}`"""
        found = self._found(request)
        if isinstance(found, web.Response):
            return found
        _, commit = found
        siblings = [{"rfilename": name} for name in self._files(request, commit)]
        return web.json_response(
            {"id": self._name(request), "sha": commit, "siblings": siblings, "private": False}
        )

    async def tree(self, request: web.Request) -> web.StreamResponse:
        """`/api/{kind}/{repository}/tree/{revision}/{path}`, in pages"""
        found = self._found(request)
        if isinstance(found, web.Response):
            return found
        _, commit = found
        prefix = request.match_info.get("path", "")
        entries = []
        directories = set()
        for path, content in sorted(self._files(request, commit).items()):
            if prefix and not path.startswith(prefix + "/"):
                continue
            parent = path.rpartition("/")[0]
            if parent and parent not in directories:
                directories.add(parent)
                entries.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": parent})
            entry = {"type": "file", "oid": _blob(content), "size": len(content), "path": path}
            if len(content) >= LFS_BYTES:
                entry["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 135}
                entry["xetHash"] = _sha256(content)
            entries.append(entry)
        start = int(request.query.get("cursor", "0"))
        headers = {}
        if start + self.page < len(entries):
            then = request.rel_url.update_query(cursor=str(start + self.page))
            headers["Link"] = f'<{self.url}{then}>; rel="next"'
        return web.json_response(entries[start : start + self.page], headers=headers)

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        """`/{repository}/resolve/{revision}/{path}`"""
        found = self._found(request)
        if isinstance(found, web.Response):
            return found
        _, commit = found
        content = self._files(request, commit).get(request.match_info["path"])
        if content is None:
            return _error(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if len(content) < LFS_BYTES:
            return _ranged(request, content, {**headers, "ETag": f'"{_blob(content)}"', **self.tamper})
        sha256 = _sha256(content)
        headers |= {
            "X-Linked-Size": str(len(content)),
            "X-Linked-ETag": f'"{sha256}"',
            "Location": f"{self.cdn}/{sha256}?Signature={self.signature}",
        }
        return web.Response(status=302, headers={**headers, **self.tamper}, text="Found. Redirecting")

    async def signed(self, request: web.Request) -> web.StreamResponse:
        """The second origin."""
        self.requests.append(f"cdn {request.method} {request.path_qs}")
        if "Authorization" in request.headers:
            self.tokens.append(request.headers["Authorization"])
        if request.query.get("Signature") != str(self.signature) or self.refuse_signed:
            return web.Response(status=403, text="<Error><Code>AccessDenied</Code></Error>")
        for repository in self.repositories.values():
            for files in repository.commits.values():
                for content in files.values():
                    if _sha256(content) == request.match_info["sha256"]:
                        return _ranged(request, content, {"ETag": f'"{request.match_info["sha256"]}"'})
        return web.Response(status=404)

    def _name(self, request: web.Request) -> str:
        return f"{request.match_info['owner']}/{request.match_info['name']}"

    def _files(self, request: web.Request, commit: str) -> dict[str, bytes]:
        return self.repositories[self._name(request)].commits[commit]

    def _found(self, request: web.Request) -> tuple[Repository, str] | web.Response:
        self.requests.append(f"{request.method} {request.path_qs}")
        if self.faults:
            status, headers = self.faults.popleft()
            return web.Response(status=status, headers=headers)
        repository = self.repositories.get(self._name(request))
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if repository is None or (
            repository.private and token != repository.private and not repository.gated
        ):
            return _error(401, "RepoNotFound", "Invalid username or password.")
        if repository.gated and token != repository.private:
            return _error(403, "GatedRepo", "Access to model is restricted.")
        revision = request.match_info.get("revision", "main")
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repository, commit

    @classmethod
    @contextlib.contextmanager
    def running(cls, host: str = "127.0.0.1") -> Iterator[Hub]:
        """Serve in a thread, on two ports of an address: the Hub's and the CDN's."""
        hub = cls()
        loop = asyncio.new_event_loop()
        started = threading.Event()
        thread = threading.Thread(target=_serve, args=(hub, host, loop, started))
        thread.start()
        assert started.wait(10)
        try:
            yield hub
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)


def _serve(hub: Hub, host: str, loop: asyncio.AbstractEventLoop, started: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    runners = [loop.run_until_complete(_listen(app, host)) for app in _apps(hub)]
    hub.url, hub.cdn = (f"http://{host}:{runner.addresses[0][1]}" for runner in runners)
    started.set()
    loop.run_forever()
    for runner in runners:
        loop.run_until_complete(runner.cleanup())
    loop.close()


async def _listen(app: web.Application, host: str) -> web.AppRunner:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    return runner


def _apps(hub: Hub) -> tuple[web.Application, web.Application]:
    main, cdn = web.Application(), web.Application()
    repository = "{owner:[^/]+}/{name:[^/]+}"
    for kind in ("models", "datasets"):
        api = f"/api/{kind}/{repository}"
        main.router.add_get(api, hub.revision)
        main.router.add_get(f"{api}/revision/{{revision:[^/]+}}", hub.revision)
        main.router.add_get(f"{api}/tree/{{revision:[^/]+}}", hub.tree)
        main.router.add_get(f"{api}/tree/{{revision:[^/]+}}/{{path:.+}}", hub.tree)
    main.router.add_get(f"/datasets/{repository}/resolve/{{revision:[^/]+}}/{{path:.+}}", hub.resolve)
    main.router.add_get(f"/{repository}/resolve/{{revision:[^/]+}}/{{path:.+}}", hub.resolve)
    cdn.router.add_get("/{sha256}", hub.signed)
    return main, cdn


def _ranged(request: web.Request, content: bytes, headers: dict[str, str]) -> web.Response:
    asked = request.http_range
    if request.headers.get("Range") is None:
        return web.Response(body=content, headers=headers)
    start, end = asked.start, min(asked.stop, len(content))
    if start >= len(content):
        return web.Response(status=416, headers={"Content-Range": f"bytes */{len(content)}"})
    said = {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}
    return web.Response(status=206, body=memoryview(content)[start:end], headers={**headers, **said})


def _error(status: int, code: str, message: str) -> web.Response:
    headers = {"X-Error-Code": code, "X-Error-Message": message}
    return web.Response(
        status=status, headers=headers, text=json.dumps({"error": message}), content_type="application/json"
    )


@functools.cache
def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@functools.cache
def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

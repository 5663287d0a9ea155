"""A Hugging Face Hub for one repository: its API in one thread, the bytes from nginx, as from a CDN.

https://huggingface.co/docs/hub/api; every file is in LFS, none in Xet.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

from aiohttp import web

REPOSITORY = "bench/model"
COMMIT = "c" * 40


class Blob(NamedTuple):
    """A file of the repository."""

    size: int
    sha256: str


class Hub:
    """`blobs` by path; `cdn` is the URL below which each lies by its sha256."""

    def __init__(self, blobs: dict[str, Blob], cdn: str) -> None:
        self._blobs = blobs
        self._cdn = cdn

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Serve in a thread; yields the URL."""
        loop, started, url = asyncio.new_event_loop(), threading.Event(), ""

        async def serve() -> web.AppRunner:
            nonlocal url
            runner = web.AppRunner(self._application(), access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            return runner

        def run() -> None:
            runner = loop.run_until_complete(serve())
            started.set()
            loop.run_forever()
            loop.run_until_complete(runner.cleanup())

        thread = threading.Thread(target=run)
        thread.start()
        started.wait()
        try:
            yield url
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _application(self) -> web.Application:
        application = web.Application()
        api = f"/api/models/{REPOSITORY}"
        for path in (api, f"{api}/revision/{{revision}}"):
            application.router.add_get(path, self._revision)
        application.router.add_get(f"{api}/tree/{{revision}}", self._tree)
        application.router.add_get(f"/{REPOSITORY}/resolve/{{revision}}/{{path:.+}}", self._resolve)
        return application

    async def _revision(self, _request: web.Request) -> web.Response:
        siblings = [{"rfilename": path} for path in self._blobs]
        return web.json_response({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings, "private": False})

    async def _tree(self, _request: web.Request) -> web.Response:
        return web.json_response(
            [
                {
                    "type": "file",
                    "oid": "0" * 40,
                    "size": blob.size,
                    "path": path,
                    "lfs": {"oid": blob.sha256, "size": blob.size, "pointerSize": 135},
                }
                for path, blob in sorted(self._blobs.items())
            ]
        )

    async def _resolve(self, request: web.Request) -> web.Response:
        blob = self._blobs[request.match_info["path"]]
        headers = {
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
            "X-Linked-Size": str(blob.size),
            "X-Linked-ETag": f'"{blob.sha256}"',
            "Location": f"{self._cdn}/{blob.sha256}",
        }
        return web.Response(status=302, headers=headers)

"""The Hugging Face Hub, and mirrors that speak its HTTP interface.

A revision becomes a commit once, when it is listed; every byte is then asked for by that commit. The tree has
a SHA-256 of each file in LFS or Xet storage and git's object id of the others, so each file is
`source-digest`.

Bytes come over plain HTTP, for files in Xet storage too: the Hub redirects to a signed URL either way. The
URL is asked for once, however many threads want it, and used for every range of its file until it is refused,
which is when it has expired. huggingface_hub is not used: it lists a repository without any time-out.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urljoin

import urllib3

from cacheprep.failures import Failure, Reason
from cacheprep.listing import MAX_FILES, Digest, File, Listing, check_name
from cacheprep.sources.body import ResponseBody
from cacheprep.sources.options import SourceOptions
from cacheprep.sources.source import Body, Nothing
from cacheprep.sources.token import hub_token
from cacheprep.sources.web import (
    MAX_REDIRECTS,
    REDIRECTS,
    Web,
    check_range,
    failure,
    origin,
    patiently,
    range_header,
    redirected,
    text,
)

HUB = "https://huggingface.co"
_COMMIT = re.compile(r"[0-9a-f]{40}")
# huggingface_hub.utils.validate_repo_id, but for the length of the owner's part
_REPOSITORY = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_KINDS = {"models/": "models", "datasets/": "datasets", "": "models"}
_SHA256_DIGITS = 64
_PAGE_BYTES = 64 << 20
"""The Hub sends 1000 files a page."""


class HuggingFaceSource:
    """`hf://[datasets/]owner/repository[@revision][/directory]`; a `/` in a revision is written %2F."""

    TAKES: ClassVar[frozenset[str]] = frozenset({"revision", "hub_endpoint", "token_file", "token_env"})

    def __init__(self, url: str, options: SourceOptions) -> None:
        self._kind, self._repository, revision, self._prefix = _parse(url)
        if revision and options.revision and revision != options.revision:
            raise Failure(
                Reason.INVALID_REQUEST,
                f"revision {options.revision!a:.200}: the URL says {revision!a:.200}; leave one out",
            )
        self._revision = revision or options.revision or "main"
        self.url = self._canonical(self._revision)
        self._options = options = replace(
            options, hub_endpoint=options.hub_endpoint or os.environ.get("HF_ENDPOINT") or HUB
        )
        self._endpoint = str(options.hub_endpoint).rstrip("/")
        self._web = Web(options.timeout_s)
        self._lock = threading.Lock()
        self._signed: dict[str, Future[str]] = {}
        """URL of a file on the Hub to where its bytes are, as the Hub said last or is just being asked."""

    def resolve(self) -> Listing:
        """The tree of the commit that the revision names now."""
        commit = self._revision
        if not _COMMIT.fullmatch(commit):
            commit = patiently(self._commit)
        entries = [entry for page in self._pages(commit) for entry in page]
        by_name: dict[str, dict[str, Any]] = {}
        for entry in entries:
            name = entry["path"].removeprefix(self._prefix)
            if entry["type"] == "file":
                if name in by_name:
                    raise self._strange(f"{name!a:.200} is in the tree twice")
                by_name[name] = entry
        files = [self._file(name, by_name[name], commit) for name in self._options.wanted(by_name)]
        return self._options.listing(self._canonical(commit), commit, files)

    @contextmanager
    def open(self, file: File, start: int, end: int) -> Iterator[Body]:
        """Bytes [start, end) of the commit's file, from where the Hub redirects to."""
        if start >= end:
            yield Nothing()
            return
        what = f"file {file.name!a}"
        commit, object_id = _read_version(file)
        hub = "/".join((self._files(), "resolve", commit, quote(self._prefix + file.name)))
        # Small files are in git, and the Hub sends them itself.
        elsewhere = len(object_id) == _SHA256_DIGITS
        url = self._located(hub, file, commit) if elsewhere else hub
        for again in (False, True):
            headers = {**range_header(start, end), **self._authorization(url)}
            with self._web.get_following(url, headers, what) as response:
                if elsewhere and not again and response.status in (400, 401, 403):
                    # The signature expired. If one that was made just now is refused, that is a refusal.
                    url = self._located(hub, file, commit, refused=url)
                    continue
                if response.status not in (200, 206):
                    raise self._refused(response, what, listed=True)
                check_range(response, file, start, end)
                if origin(url) == origin(self._endpoint):
                    _check_linked(response, file, commit)
                    _check_object(response, file, object_id)
                yield ResponseBody(response, end - start, what)
                return

    def close(self) -> None:
        """Close connections."""
        self._web.close()

    def _located(self, hub: str, file: File, commit: str, refused: str = "") -> str:
        """Where the bytes of a file are. One thread asks the Hub, and all that want to know get its answer.

        `refused` is the URL that was no longer good.
        """
        with self._lock:
            found = self._signed.get(hub)
            if found is not None and found.done() and (found.exception() or found.result() == refused):
                found = None
            asks = found is None
            if found is None:
                found = self._signed[hub] = Future()
        if asks:
            try:
                found.set_result(self._redirection(hub, file, commit))
            except BaseException as error:
                found.set_exception(error)
        return found.result()

    def _redirection(self, hub: str, file: File, commit: str) -> str:
        """Where the Hub redirects to for a file; itself if it does not."""
        what, url = f"file {file.name!a}", hub
        for _ in range(MAX_REDIRECTS + 1):
            with self._web.get(url, self._authorization(url), what, method="HEAD") as response:
                if response.status not in (200, *REDIRECTS):
                    raise self._refused(response, what, listed=True)
                _check_linked(response, file, commit)
                if response.status == 200:
                    return url
                url = redirected(url, response, what)
            if origin(url) != origin(self._endpoint):
                return url
        raise Failure(Reason.SOURCE_UNAVAILABLE, f"{what}: redirected without end")

    def _canonical(self, revision: str) -> str:
        kind = "" if self._kind == "models" else f"{self._kind}/"
        prefix = f"/{self._prefix.rstrip('/')}" if self._prefix else ""
        return f"hf://{kind}{self._repository}@{quote(revision, safe='')}{quote(prefix)}"

    def _files(self) -> str:
        kind = "" if self._kind == "models" else f"{self._kind}/"
        return f"{self._endpoint}/{kind}{self._repository}"

    def _api(self, *parts: str) -> str:
        return "/".join((self._endpoint, "api", self._kind, self._repository, *parts))

    def _commit(self) -> str:
        what = f"source {self.url}"
        content = self._json(self._api("revision", quote(self._revision, safe="")), what)[0]
        commit = content.get("sha") if isinstance(content, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise self._strange("the revision has no commit of 40 hex digits")
        return commit

    def _pages(self, commit: str) -> Iterator[list[dict[str, Any]]]:
        url = self._api("tree", commit, quote(self._prefix.rstrip("/")))
        next_url: str | None = f"{url.rstrip('/')}?recursive=true&expand=false"
        count = 0
        while next_url:
            page, then = patiently(partial(self._json, next_url, f"source {self.url}"))
            if not isinstance(page, list) or not all(map(_is_entry, page)):
                raise self._strange("the tree is not a list of files")
            count += len(page)
            if count > 2 * MAX_FILES:
                raise Failure(
                    Reason.INVALID_REQUEST,
                    f"source {self.url}: has more than {MAX_FILES} files; name a directory in it",
                )
            yield page
            if then and origin(then) != origin(self._endpoint):
                # Mirrors pass on links to the Hub itself, which would get our token or be out of reach.
                then = then.replace("://".join(origin(then)), "://".join(origin(self._endpoint)), 1)
            next_url = then

    def _json(self, url: str, what: str) -> tuple[Any, str | None]:
        """The JSON at a URL of the Hub, and the URL of the next page."""
        with self._web.get_following(url, self._authorization(url), what) as response:
            if response.status != 200:
                raise self._refused(response, what)
            content = text(response, _PAGE_BYTES, what)
            link = re.search(r'<([^>]+)>;\s*rel="next"', response.headers.get("Link", ""))
        try:
            return json.loads(content), urljoin(url, link[1]) if link else None
        except (ValueError, RecursionError) as error:
            raise self._strange(f"the answer is not JSON ({error})") from error

    def _authorization(self, url: str) -> dict[str, str]:
        if origin(url) != origin(self._endpoint):
            return {}
        token = hub_token(self._options)
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _file(self, name: str, entry: dict[str, Any], commit: str) -> File:
        lfs = entry.get("lfs")
        if lfs is not None:
            if not isinstance(lfs, dict) or not isinstance(lfs.get("oid"), str):
                raise self._strange(f"{name!a:.200} has no LFS object id")
            digest = Digest("sha256", lfs["oid"].removeprefix("sha256:"))
        else:
            digest = Digest("git-blob-sha1", entry["oid"])
        return File(name, entry["size"], (digest,), f"commit={commit} object={digest.value}")

    def _refused(self, response: urllib3.BaseHTTPResponse, what: str, *, listed: bool = False) -> Failure:
        """What an error of the Hub means; `X-Error-Code` as in huggingface_hub.utils.hf_raise_for_status."""
        code = response.headers.get("X-Error-Code", "")
        said = response.headers.get("X-Error-Message", "")
        if code == "GatedRepo":
            return Failure(
                Reason.ACCESS_DENIED,
                f"{what}: the repository is gated; accept its terms at {HUB}/{self._repository} and give the"
                " token of an account that has",
            )
        if code == "RevisionNotFound" and not listed:
            return Failure(
                Reason.INVALID_REQUEST,
                f"revision {self._revision!a:.200}: {self._repository} has no such branch, tag or commit",
            )
        if code == "RepoNotFound" or (response.status == 401 and not code):
            return Failure(
                Reason.ACCESS_DENIED,
                f"{what}: HTTP {response.status}, there is no such repository, or it is private; check the"
                " name, or give the token of an account that may read it",
            )
        return failure(response.status, response.headers, what, listed=listed, said=said)

    def _strange(self, how: str) -> Failure:
        return Failure(
            Reason.SOURCE_UNAVAILABLE, f"source {self.url}: {how}; is {self._endpoint} a Hugging Face Hub?"
        )


def _parse(url: str) -> tuple[str, str, str, str]:
    """Kind, repository, revision ("" if none) and prefix ("" or with a / at its end)."""
    rest = url.partition("://")[2].rstrip("/")
    start = next(start for start in _KINDS if rest.startswith(start))
    rest = rest.removeprefix(start)
    head, at, tail = rest.partition("@")
    if at:
        repository = head
        revision, _, prefix = tail.partition("/")
    else:
        owner, _, tail = rest.partition("/")
        name, _, prefix = tail.partition("/")
        repository, revision = f"{owner}/{name}" if name else owner, ""
    revision, prefix = unquote(revision), unquote(prefix)
    if (
        not _REPOSITORY.fullmatch(repository)
        or "?" in url
        or "#" in url
        or ".." in repository
        or (at and not revision)
    ):
        raise Failure(
            Reason.INVALID_REQUEST, f"source {url!a:.300}: write hf://owner/repository[@revision][/directory]"
        )
    if not revision.isprintable() or len(revision) > 255 or ".." in revision:
        raise Failure(Reason.INVALID_REQUEST, f"revision {revision!a:.200}: write a branch, tag or commit")
    if prefix:
        check_name(prefix)
    return _KINDS[start], repository, revision, f"{prefix}/" if prefix else ""


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("path"), str)
        and isinstance(entry.get("oid"), str)
        and type(entry.get("size")) is int
        and isinstance(entry.get("type"), str)
    )


def _read_version(file: File) -> tuple[str, str]:
    match = re.fullmatch(r"commit=([0-9a-f]{40}) object=([0-9a-f]{40}|[0-9a-f]{64})", file.version)
    if match is None:
        raise Failure(
            Reason.INVALID_REQUEST,
            f"file {file.name!a}: version {file.version!a:.100} is not of a Hub's listing",
        )
    return match[1], match[2]


def _check_linked(response: urllib3.BaseHTTPResponse, file: File, commit: str) -> None:
    """What the Hub says before it redirects: `X-Repo-Commit` and, of LFS files, `X-Linked-Etag`."""
    said = response.headers.get("X-Repo-Commit", commit)
    linked = response.headers.get("X-Linked-Etag", "").removeprefix("W/").strip('"')
    expected = file.version.rpartition("=")[2]
    if said != commit or (linked and len(linked) == len(expected) and linked != expected):
        raise Failure(
            Reason.SOURCE_CHANGED,
            f"file {file.name!a}: the Hub has another one under this commit; list it anew",
        )


def _check_object(response: urllib3.BaseHTTPResponse, file: File, object_id: str) -> None:
    etag = response.headers.get("ETag", "").removeprefix("W/").strip('"')
    if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", etag) and len(etag) == len(object_id) and etag != object_id:
        raise Failure(
            Reason.SOURCE_CHANGED, f"file {file.name!a}: was {object_id}, is {etag}; list the source anew"
        )

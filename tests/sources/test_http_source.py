"""http(s), against nginx; faults by a proxy between; a server without ranges is Python's own."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cacheprep.failures import Failure, Reason
from cacheprep.listing import Digest, File, Listing, Verification
from cacheprep.sources import SourceOptions, source_of
from tests.sources.fault_proxy import Fault, FaultProxy
from tests.sources.reading import contents, failure_of_reading, failure_of_resolving, named, read
from tests.sources.servers import free_port, nginx, sha256sums

FILES = {"config.json": b"{}", "a/model 1.safetensors": bytes(range(256)) * 4000, "empty": b""}
OPTIONS = SourceOptions(timeout_s=5)


def publish(www: Path, files: dict[str, bytes], manifest: str | None = None) -> None:
    """Write files, and the manifest that sha256sum would write."""
    for name, content in files.items():
        (www / name).parent.mkdir(parents=True, exist_ok=True)
        (www / name).write_bytes(content)
    (www / "SHA256SUMS").write_text(sha256sums(files) if manifest is None else manifest)


@pytest.fixture
def www(tmp_path: Path) -> Path:
    directory = tmp_path / "www" / "llama"
    directory.mkdir(parents=True)
    publish(directory, FILES)
    return directory


@pytest.fixture
def url(tmp_path: Path, www: Path) -> Iterator[str]:
    with nginx(tmp_path) as server:
        yield f"{server}/llama"


def test_the_manifest_says_what_is_below_the_url(url: str, www: Path) -> None:
    strict = replace(OPTIONS, verification=Verification.SOURCE_DIGEST)
    source = source_of(url, strict)
    listing = source.resolve()
    assert listing.source == f"{url}/"
    assert contents(source, listing) == FILES
    assert [file.size for file in listing.files] == [len(FILES[name]) for name in sorted(FILES)]
    elsewhere = source_of(listing.source, OPTIONS)
    assert contents(elsewhere, Listing.from_json(listing.to_json())) == FILES


def test_a_range_is_that_range(url: str) -> None:
    source = source_of(url, OPTIONS)
    file = named(source.resolve(), "a/model 1.safetensors")
    for start, end in [(0, 1), (7, 7), (255, 300_001), (file.size - 1, file.size)]:
        assert read(source, file, start, end) == FILES[file.name][start:end]


@pytest.mark.parametrize(
    "line",
    ["{digest}  ./{name}", "{digest} *{name}", "SHA256 ({name}) = {digest}", "# said\n\n{digest}  {name}\r"],
)
def test_manifests_in_every_form_of_sha256sum(url: str, www: Path, line: str) -> None:
    digest = hashlib.sha256(b"{}").hexdigest()
    publish(www, {}, line.format(digest=digest, name="config.json") + "\n")
    [file] = source_of(url, OPTIONS).resolve().files
    assert file.name == "config.json"
    assert file.digests == (Digest("sha256", digest),)


def test_a_listing_is_a_manifest_too(url: str, www: Path) -> None:
    files = tuple(
        File(name, len(content), (Digest("sha256", hashlib.sha256(content).hexdigest()),), "of elsewhere")
        for name, content in FILES.items()
    )
    (www.parent / "listing.json").write_bytes(Listing("s3://bucket/llama/", "", files).to_json())
    manifest = f"{url.removesuffix('/llama')}/listing.json"
    source = source_of(url, replace(OPTIONS, manifest_url=manifest))
    assert contents(source, source.resolve()) == FILES


def test_a_manifest_of_another_size_is_source_changed(url: str, www: Path) -> None:
    file = File("config.json", 3, (Digest("sha256", "0" * 64),))
    (www / "SHA256SUMS").write_bytes(Listing("s3://bucket/llama/", "", (file,)).to_json())
    assert failure_of_resolving(source_of(url, OPTIONS)).reason is Reason.SOURCE_CHANGED


@pytest.mark.parametrize(
    "text", ["not a manifest\n", "0123  config.json\n", '{"format": 1}', "\\\\x  a\n", "\x00"]
)
def test_a_manifest_that_is_none_is_refused(url: str, www: Path, text: str) -> None:
    publish(www, {}, text)
    assert failure_of_resolving(source_of(url, OPTIONS)).reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a//b", "a/./b", "a\\b", "a\tb", "b" * 300])
def test_hostile_names_are_refused_before_they_are_asked_for(url: str, www: Path, name: str) -> None:
    publish(www, {}, f"{'0' * 64}  {name}\n")
    failure = failure_of_resolving(source_of(url, OPTIONS))
    assert failure.reason is Reason.INVALID_REQUEST
    assert "file name" in failure.message


def test_a_name_is_quoted_in_its_url(url: str, www: Path) -> None:
    odd = {"100%.bin": b"1", "a?b#c.bin": b"2", "ümlaut.bin": b"3", "%2e%2e/x": b"4"}
    publish(www, odd)
    source = source_of(url, OPTIONS)
    assert contents(source, source.resolve()) == odd


def test_a_manifest_that_is_missing_and_a_file_that_is_missing_are_named(url: str, www: Path) -> None:
    publish(www, {}, f"{'0' * 64}  gone\n")
    failure = failure_of_resolving(source_of(url, OPTIONS))
    assert failure.reason is Reason.INVALID_REQUEST
    assert "'gone'" in failure.message
    (www / "SHA256SUMS").unlink()
    failure = failure_of_resolving(source_of(url, OPTIONS))
    assert failure.reason is Reason.INVALID_REQUEST
    assert "manifest_url" in failure.message
    assert "--manifest-url" in failure.message


def test_a_connection_that_is_refused_is_told_as_that() -> None:
    source = source_of(f"http://127.0.0.1:{free_port()}/llama", OPTIONS)
    file = File("config.json", 2, (), "")
    failure = failure_of_reading(source, file)
    assert failure.reason is Reason.SOURCE_UNAVAILABLE
    assert "Connection refused" in failure.message


@pytest.mark.parametrize("location", ["", "etag off;"])
def test_a_file_that_was_replaced_is_source_changed(tmp_path: Path, www: Path, location: str) -> None:
    with nginx(tmp_path, location) as server:
        source = source_of(f"{server}/llama", OPTIONS)
        file = named(source.resolve(), "config.json")
        assert file.version.startswith("modified=" if location else "etag=")
        assert read(source, file) == b"{}"
        (www / "config.json").write_bytes(b"[]")
        os.utime(www / "config.json", (1, 1_900_000_000))
        assert failure_of_reading(source, file).reason is Reason.SOURCE_CHANGED
        (www / "config.json").unlink()
        assert failure_of_reading(source, file).reason is Reason.SOURCE_CHANGED


def test_one_that_shrank_is_too_where_the_server_ignores_conditions(tmp_path: Path, www: Path) -> None:
    with nginx(tmp_path, "etag off; add_header Last-Modified ''; if_modified_since off;") as server:
        source = source_of(f"{server}/llama", OPTIONS)
        file = named(source.resolve(), "a/model 1.safetensors")
        (www / file.name).write_bytes(b"short")
        assert failure_of_reading(source, file, 0, 4).reason is Reason.SOURCE_CHANGED


def test_a_server_without_ranges_is_refused_by_name(www: Path) -> None:
    handler = functools.partial(_Quiet, directory=str(www))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            failure = failure_of_resolving(source_of(f"http://127.0.0.1:{server.server_port}/", OPTIONS))
        finally:
            server.shutdown()
            thread.join()
    assert failure.reason is Reason.INVALID_REQUEST
    assert "does not serve ranges" in failure.message


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_so_is_one_that_compresses(tmp_path: Path, www: Path) -> None:
    with nginx(tmp_path, "add_header Content-Encoding gzip;") as server:
        source = source_of(f"{server}/llama", OPTIONS)
        listing = Listing("x", "", (File("config.json", 2, (), ""),))
        failure = failure_of_reading(source, listing.files[0])
    assert failure.reason is Reason.INVALID_REQUEST
    assert "Content-Encoding" in failure.message


def test_a_token_is_sent_to_the_server_and_not_to_where_it_redirects(tmp_path: Path, www: Path) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "www").mkdir()
    (tmp_path / "other" / "www" / "llama").symlink_to(www)
    with nginx(tmp_path / "other") as other, FaultProxy.before(other) as seen:
        check = 'if ($http_authorization != "Bearer secret") { return 401; }'
        check += f" return 302 {seen.url}$request_uri;"
        with nginx(tmp_path, check) as server:
            assert failure_of_resolving(source_of(f"{server}/llama", OPTIONS)).reason is Reason.ACCESS_DENIED
            source = source_of(f"{server}/llama", replace(OPTIONS, token_file=str(tmp_path / "token")))
            assert contents(source, source.resolve()) == FILES
        assert seen.requests
        assert not any(b"secret" in request for request in seen.requests)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(status=401), Reason.ACCESS_DENIED),
        (Fault(status=403), Reason.ACCESS_DENIED),
        (Fault(status=404), Reason.SOURCE_CHANGED),
        (Fault(status=412), Reason.SOURCE_CHANGED),
        (Fault(status=416), Reason.SOURCE_CHANGED),
        (Fault(status=429), Reason.SOURCE_UNAVAILABLE),
        (Fault(status=500), Reason.SOURCE_UNAVAILABLE),
        (Fault(status=503), Reason.SOURCE_UNAVAILABLE),
        (Fault(status=206, headers={"Content-Range": "bytes 0-9/1024000"}), Reason.SOURCE_UNAVAILABLE),
        (Fault(status=206, headers={"Content-Range": "bytes 0-9/10"}), Reason.SOURCE_CHANGED),
        (Fault(status=302, headers={"Location": "file:///etc/passwd"}), Reason.SOURCE_UNAVAILABLE),
        (Fault(cut=True, after=100_000), Reason.SOURCE_UNAVAILABLE),
        (Fault(reset=True, after=100_000), Reason.SOURCE_UNAVAILABLE),
        (Fault(stall=True, after=100_000), Reason.SOURCE_UNAVAILABLE),
        (Fault(silent=True), Reason.SOURCE_UNAVAILABLE),
    ],
)
def test_a_fault_is_its_reason(url: str, fault: Fault, reason: Reason) -> None:
    with FaultProxy.before(url) as proxy:
        source = source_of(f"{proxy.url}/llama", replace(OPTIONS, timeout_s=1))
        file = named(source.resolve(), "a/model 1.safetensors")
        proxy.requests.clear()
        proxy.faults.append(fault)
        assert failure_of_reading(source, file).reason is reason
        assert len(proxy.requests) == 1
        assert read(source, file, 256, 260) == bytes(range(4))


def test_a_proxy_of_the_environment_is_used_but_not_for_what_no_proxy_names(
    url: str, environment: pytest.MonkeyPatch
) -> None:
    with FaultProxy.before(url) as proxy:
        environment.setenv("http_proxy", proxy.url)
        source = source_of("http://weights.invalid/llama", OPTIONS)
        assert contents(source, source.resolve()) == FILES
        assert all(b" http://weights.invalid/llama/" in request for request in proxy.requests)
        proxy.requests.clear()
        environment.setenv("no_proxy", "127.0.0.1")
        source = source_of(url, OPTIONS)
        assert contents(source, source.resolve()) == FILES
        assert proxy.requests == []


def test_a_date_in_retry_after_is_counted_from_the_answers_own() -> None:
    from cacheprep.sources.web import retry_after_s

    date, later = "Wed, 21 Oct 2026 07:28:00 GMT", "Wed, 21 Oct 2026 07:28:30 GMT"
    assert retry_after_s({"Date": date, "Retry-After": later}) == 30
    assert retry_after_s({"Date": later, "Retry-After": date}) == 0
    assert retry_after_s({"Retry-After": later}) is None
    assert retry_after_s({"Retry-After": "soon"}) is None
    assert retry_after_s({}) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "https://user:pass@host/x",
        "https://host/x?sig=1",
        "https://host/x#y",
        "https://host/a/../b",
    ],
)
def test_urls_that_name_no_directory_are_refused_without_their_secrets(url: str) -> None:
    with pytest.raises(Failure, match="InvalidRequest") as caught:
        source_of(url, SourceOptions())
    assert "pass" not in caught.value.message
    assert "sig=1" not in caught.value.message

"""The Hub, against a local one; the same server serves huggingface_hub's own client in the last tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.hf_api import RepoFile

from cacheprep.digests import hasher
from cacheprep.failures import Failure, Reason
from cacheprep.listing import Digest, File, Listing, Verification
from cacheprep.sources import SourceOptions, source_of
from tests.sources.fault_proxy import Fault, FaultProxy
from tests.sources.hub import Hub, Repository
from tests.sources.reading import contents, failure_of_reading, failure_of_resolving, named, read

REPOSITORY = "meta/llama"
FILES = {
    "config.json": b'{"a": 1}',
    "model-00001.safetensors": bytes(range(256)) * 100,
    "model-00002.safetensors": b"second" * 5000,
    "original/params.json": b"{}",
    "empty": b"",
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub.running() as hub:
        hub.repositories[REPOSITORY] = Repository()
        hub.repositories[REPOSITORY].commit(FILES)
        yield hub


@pytest.fixture
def options(hub: Hub) -> SourceOptions:
    return SourceOptions(hub_endpoint=hub.url, timeout_s=5)


def test_a_branch_becomes_a_commit(hub: Hub, options: SourceOptions) -> None:
    source = source_of(f"hf://{REPOSITORY}", options)
    listing = source.resolve()
    commit = hub.repositories[REPOSITORY].branches["main"]
    assert listing.revision == commit
    assert listing.source == f"hf://{REPOSITORY}@{commit}"
    assert contents(source, listing) == FILES


def test_the_commit_is_read_after_the_branch_moved(hub: Hub, options: SourceOptions) -> None:
    listing = source_of(f"hf://{REPOSITORY}", options).resolve()
    hub.repositories[REPOSITORY].commit({"config.json": b"new"})
    elsewhere = source_of(listing.source, options)
    assert contents(elsewhere, Listing.from_json(listing.to_json())) == FILES
    assert elsewhere.resolve() == listing


def test_every_file_has_a_digest_that_proves_it(hub: Hub, options: SourceOptions) -> None:
    strict = replace(options, verification=Verification.SOURCE_DIGEST)
    listing = source_of(f"hf://{REPOSITORY}", strict).resolve()
    assert listing.verification is Verification.SOURCE_DIGEST
    kinds = {file.name: file.digests[0].algorithm for file in listing.files}
    assert kinds["config.json"] == "git-blob-sha1"
    assert kinds["model-00001.safetensors"] == "sha256"
    for file in listing.files:
        computed = hasher(file.digests[0], file.size)
        computed.update(FILES[file.name])
        assert computed.hexdigest() == file.digests[0].value


@pytest.mark.parametrize("revision", ["main", "refs/pr/1", "v1.0"])
def test_a_revision_may_be_in_the_url_or_the_options(hub: Hub, options: SourceOptions, revision: str) -> None:
    commit = hub.repositories[REPOSITORY].commit({"config.json": b"pr"}, branch=revision)
    quoted = revision.replace("/", "%2F")
    for source in (
        source_of(f"hf://{REPOSITORY}@{quoted}", options),
        source_of(f"hf://{REPOSITORY}", replace(options, revision=revision)),
    ):
        assert source.resolve().revision == commit


def test_a_directory_of_a_repository(hub: Hub, options: SourceOptions) -> None:
    for url in (f"hf://{REPOSITORY}/original", f"hf://{REPOSITORY}@main/original/"):
        source = source_of(url, options)
        listing = source.resolve()
        assert listing.source.endswith(f"@{listing.revision}/original")
        assert contents(source_of(listing.source, options), listing) == {"params.json": b"{}"}


def test_data_sets_too(hub: Hub, options: SourceOptions) -> None:
    source = source_of(f"hf://datasets/{REPOSITORY}", options)
    assert contents(source, source.resolve()) == FILES


def test_the_tree_is_read_page_by_page(hub: Hub, options: SourceOptions) -> None:
    hub.page = 2
    assert len(source_of(f"hf://{REPOSITORY}", options).resolve().files) == len(FILES)
    assert sum("/tree/" in request for request in hub.requests) == 3


def test_patterns_are_those_of_the_hub(hub: Hub, options: SourceOptions) -> None:
    chosen = replace(options, allow=("*.safetensors", "original/"), ignore=("*2.safetensors",))
    listing = source_of(f"hf://{REPOSITORY}", chosen).resolve()
    assert [file.name for file in listing.files] == ["model-00001.safetensors", "original/params.json"]


def test_one_signed_url_serves_all_ranges_of_a_file(hub: Hub, options: SourceOptions) -> None:
    source = source_of(f"hf://{REPOSITORY}", options)
    file = named(source.resolve(), "model-00001.safetensors")
    hub.requests.clear()
    for start in range(0, file.size, 5000):
        assert read(source, file, start, start + 100) == FILES[file.name][start : start + 100]
    assert sum("/resolve/" in request for request in hub.requests) == 1


def test_it_is_asked_for_once_however_many_threads_begin_with_the_file(
    hub: Hub, options: SourceOptions
) -> None:
    source = source_of(f"hf://{REPOSITORY}", options)
    file = named(source.resolve(), "model-00001.safetensors")

    def asked() -> int:
        return sum("/resolve/" in request for request in hub.requests)

    def read_at_once() -> None:
        together = threading.Barrier(16)

        def one(start: int) -> bytes:
            together.wait()
            return read(source, file, start, start + 100)

        with ThreadPoolExecutor(16) as threads:
            starts = range(0, 1600, 100)
            assert list(threads.map(one, starts)) == [FILES[file.name][at : at + 100] for at in starts]

    read_at_once()
    assert asked() == 1
    hub.expire()
    read_at_once()
    assert asked() == 2


def test_a_hub_that_does_not_answer_is_asked_again_by_the_next_one(hub: Hub, options: SourceOptions) -> None:
    source = source_of(f"hf://{REPOSITORY}", options)
    file = named(source.resolve(), "model-00001.safetensors")
    hub.faults.append((503, {}))
    assert failure_of_reading(source, file, 0, 4).reason is Reason.SOURCE_UNAVAILABLE
    assert read(source, file, 0, 4) == bytes(range(4))


def test_a_signed_url_that_expired_is_resolved_again(hub: Hub, options: SourceOptions) -> None:
    source = source_of(f"hf://{REPOSITORY}", options)
    file = named(source.resolve(), "model-00001.safetensors")
    assert read(source, file, 0, 4) == bytes(range(4))
    hub.expire()
    assert read(source, file, 256, 260) == bytes(range(4))
    hub.refuse_signed = True
    assert failure_of_reading(source, file).reason is Reason.ACCESS_DENIED


def test_the_token_goes_to_the_hub_and_to_no_other_origin(
    hub: Hub, options: SourceOptions, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.repositories[REPOSITORY].private = "hf_secret"
    (tmp_path / "token").write_text("hf_secret\n")
    environment.setenv("MY_TOKEN", "hf_secret")
    by_file = replace(options, token_file=str(tmp_path / "token"))
    by_name = replace(options, token_env="MY_TOKEN")
    for chosen in (by_file, by_name):
        source = source_of(f"hf://{REPOSITORY}", chosen)
        assert contents(source, source.resolve()) == FILES
    environment.setenv("HF_TOKEN", "hf_secret")
    source = source_of(f"hf://{REPOSITORY}", options)
    assert contents(source, source.resolve()) == FILES
    assert hub.tokens == []


def test_a_token_that_was_replaced_in_its_file_is_used(
    hub: Hub, options: SourceOptions, tmp_path: Path
) -> None:
    hub.repositories[REPOSITORY].private = "old"
    (tmp_path / "token").write_text("old")
    source = source_of(f"hf://{REPOSITORY}", replace(options, token_file=str(tmp_path / "token")))
    listing = source.resolve()
    hub.repositories[REPOSITORY].private = "new"
    assert failure_of_reading(source, named(listing, "config.json")).reason is Reason.ACCESS_DENIED
    (tmp_path / "token").write_text("new")
    assert read(source, named(listing, "config.json")) == FILES["config.json"]


def test_a_gated_repository_says_what_to_accept(hub: Hub, options: SourceOptions) -> None:
    hub.repositories[REPOSITORY].gated = True
    hub.repositories[REPOSITORY].private = "hf_accepted"
    failure = failure_of_resolving(source_of(f"hf://{REPOSITORY}", options))
    assert failure.reason is Reason.ACCESS_DENIED
    assert f"https://huggingface.co/{REPOSITORY}" in failure.message


def test_what_is_not_there(hub: Hub, options: SourceOptions) -> None:
    failure = failure_of_resolving(source_of("hf://meta/lama", options))
    assert failure.reason is Reason.ACCESS_DENIED
    assert "no such repository, or it is private" in failure.message
    failure = failure_of_resolving(source_of(f"hf://{REPOSITORY}@nightly", options))
    assert failure.reason is Reason.INVALID_REQUEST
    assert "nightly" in failure.message


def test_another_file_under_the_commit_is_source_changed(hub: Hub, options: SourceOptions) -> None:
    source = source_of(f"hf://{REPOSITORY}", options)
    listing = source.resolve()
    hub.tamper = {"X-Linked-ETag": f'"{"0" * 64}"'}
    assert (
        failure_of_reading(source, named(listing, "model-00001.safetensors")).reason is Reason.SOURCE_CHANGED
    )
    hub.tamper = {"ETag": f'"{"0" * 40}"'}
    assert failure_of_reading(source, named(listing, "config.json")).reason is Reason.SOURCE_CHANGED
    hub.tamper = {"X-Repo-Commit": "0" * 40}
    assert failure_of_reading(source, named(listing, "config.json")).reason is Reason.SOURCE_CHANGED


def test_a_repository_that_was_removed_is_source_changed_or_denied(hub: Hub, options: SourceOptions) -> None:
    source = source_of(f"hf://{REPOSITORY}", options)
    listing = source.resolve()
    hub.repositories[REPOSITORY].commits.clear()
    assert failure_of_reading(source, named(listing, "config.json")).reason is Reason.SOURCE_CHANGED
    del hub.repositories[REPOSITORY]
    assert failure_of_reading(source, named(listing, "config.json")).reason is Reason.ACCESS_DENIED


def test_listing_waits_as_long_as_a_busy_hub_asks(hub: Hub, options: SourceOptions) -> None:
    hub.faults.extend([(429, {"Retry-After": "0"}), (503, {"Retry-After": "0"}), (500, {"Retry-After": "0"})])
    assert source_of(f"hf://{REPOSITORY}", options).resolve().total == sum(map(len, FILES.values()))


@pytest.mark.parametrize("headers", [{"Retry-After": "17"}, {"RateLimit": '"resolvers";r=0;t=17'}])
def test_reading_hands_it_on(hub: Hub, options: SourceOptions, headers: dict[str, str]) -> None:
    source = source_of(f"hf://{REPOSITORY}", options)
    file = named(source.resolve(), "config.json")
    hub.faults.append((429, headers))
    failure = failure_of_reading(source, file)
    assert (failure.reason, failure.retry_after_s) == (Reason.SOURCE_UNAVAILABLE, 17)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(status=404), Reason.SOURCE_CHANGED),
        (Fault(status=416), Reason.SOURCE_CHANGED),
        (Fault(status=429), Reason.SOURCE_UNAVAILABLE),
        (Fault(status=500), Reason.SOURCE_UNAVAILABLE),
        (Fault(status=503), Reason.SOURCE_UNAVAILABLE),
        (Fault(cut=True, after=1000), Reason.SOURCE_UNAVAILABLE),
        (Fault(reset=True, after=1000), Reason.SOURCE_UNAVAILABLE),
        (Fault(stall=True, after=1000), Reason.SOURCE_UNAVAILABLE),
        (Fault(silent=True), Reason.SOURCE_UNAVAILABLE),
    ],
)
def test_a_fault_of_the_cdn_is_its_reason(
    hub: Hub, options: SourceOptions, fault: Fault, reason: Reason
) -> None:
    with FaultProxy.before(hub.cdn) as proxy:
        hub.cdn = proxy.url
        source = source_of(f"hf://{REPOSITORY}", replace(options, timeout_s=1))
        file = named(source.resolve(), "model-00001.safetensors")
        proxy.faults.append(fault)
        assert failure_of_reading(source, file).reason is reason
        assert read(source, file) == FILES[file.name]


def test_the_next_page_is_asked_of_the_mirror_not_of_the_hub_that_it_names(
    hub: Hub, options: SourceOptions
) -> None:
    hub.page = 2
    with FaultProxy.before(hub.url) as mirror:
        # The mirror hands on the Link header of the Hub behind it, which has the Hub's own address.
        source = source_of(f"hf://{REPOSITORY}", replace(options, hub_endpoint=mirror.url))
        assert len(source.resolve().files) == len(FILES)
        assert sum(b"/tree/" in request for request in mirror.requests) == 3


def test_a_mirror_may_be_named_by_the_environment(hub: Hub, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HF_ENDPOINT", f"{hub.url}/")
    source = source_of(f"hf://{REPOSITORY}", SourceOptions())
    assert contents(source, source.resolve()) == FILES


@pytest.mark.parametrize("name", ["../passwd", "a/../../b", "a\\b", "a\nb", "/etc/passwd", "a" * 256])
def test_hostile_names_are_refused(hub: Hub, options: SourceOptions, name: str) -> None:
    hub.repositories[REPOSITORY].commit({"config.json": b"{}", name: b"evil"})
    failure = failure_of_resolving(source_of(f"hf://{REPOSITORY}", options))
    assert failure.reason is Reason.INVALID_REQUEST
    assert "file name" in failure.message


def test_a_mirror_that_is_no_url_is_named(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HF_ENDPOINT", "hf-mirror.example")
    with pytest.raises(Failure, match="hub_endpoint 'hf-mirror"):
        source_of(f"hf://{REPOSITORY}", SourceOptions())


def test_names_that_differ_in_case_are_refused(hub: Hub, options: SourceOptions) -> None:
    hub.repositories[REPOSITORY].commit({"Config.json": b"{}", "config.json": b"evil"})
    assert failure_of_resolving(source_of(f"hf://{REPOSITORY}", options)).reason is Reason.INVALID_REQUEST


def test_a_server_that_is_no_hub_is_named(hub: Hub, options: SourceOptions) -> None:
    hub.repositories[REPOSITORY].branches["main"] = "not-a-commit"
    hub.repositories[REPOSITORY].commits["not-a-commit"] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cacheprep.sources.web._ATTEMPTS", 1)
        failure = failure_of_resolving(source_of(f"hf://{REPOSITORY}", options))
    assert failure.reason is Reason.SOURCE_UNAVAILABLE
    assert "is " + hub.url + " a Hugging Face Hub?" in failure.message


@pytest.mark.parametrize(
    "url",
    ["hf://", "hf://a/b@", "hf://a b/c", "hf://../x", "hf://a/b?x=1", "hf://a/b@..", "hf://a/b@main/../c"],
)
def test_urls_that_name_no_repository_are_refused(url: str) -> None:
    with pytest.raises(Failure, match="InvalidRequest"):
        source_of(url, SourceOptions())


def test_two_revisions_are_refused() -> None:
    with pytest.raises(Failure, match="leave one out"):
        source_of("hf://a/b@v1", SourceOptions(revision="v2"))


def test_a_listing_of_another_source_is_refused(options: SourceOptions) -> None:
    file = File("config.json", 8, (Digest("sha256", "0" * 64),), 'etag="abc"')
    assert failure_of_reading(source_of(f"hf://{REPOSITORY}", options), file).reason is Reason.INVALID_REQUEST


def test_huggingface_hub_reads_the_same_from_this_server(
    hub: Hub, options: SourceOptions, tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    hub.page = 2
    api = HfApi(endpoint=hub.url, token=False)
    info = api.model_info(REPOSITORY)
    snapshot_download(
        REPOSITORY,
        revision=info.sha,
        endpoint=hub.url,
        token=False,
        local_dir=tmp_path,
        cache_dir=tmp_path / "c",
    )
    source = source_of(f"hf://{REPOSITORY}", options)
    listing = source.resolve()
    assert listing.revision == info.sha
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == contents(source, listing)


def test_and_lists_the_same_digests(hub: Hub, options: SourceOptions) -> None:
    api = HfApi(endpoint=hub.url, token=False)
    listing = source_of(f"hf://{REPOSITORY}", options).resolve()
    theirs = {}
    for entry in api.list_repo_tree(REPOSITORY, recursive=True, revision=listing.revision):
        if isinstance(entry, RepoFile):
            theirs[entry.path] = (entry.size, entry.lfs.sha256 if entry.lfs else entry.blob_id)
    assert theirs == {file.name: (file.size, file.digests[0].value) for file in listing.files}

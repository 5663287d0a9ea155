"""Small objects of S3, of which a listing has no digest: their checksums come with their bytes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import xxhash

from cacheprep.failures import Failure, Reason
from cacheprep.filling import Filled, Plan, fill
from cacheprep.listing import Listing
from cacheprep.sources import SourceOptions, source_of
from cacheprep.store.capacity import Limits
from cacheprep.store.inventory import inventory
from cacheprep.store.root import Root, Rules, open_to_write
from cacheprep.transfer.counters import Counters, Snapshot
from cacheprep.transfer.engine import Edge, Settings, transfer
from cacheprep.transfer.journal import Claim, Journal
from cacheprep.transfer.ranges import Range
from tests.sources.fault_proxy import Fault, FaultProxy
from tests.sources.servers import ACCESS, REGION, SECRET, s3_client, versitygw

SETTINGS = Settings(connections=4, range_bytes=1 << 16, attempts=3)
SIZE = 300_000
"""Of each file: more than one range."""
FILES = {f"model-{number}.safetensors": random.Random(number).randbytes(SIZE) for number in range(6)}
AT = 200_000


class Small:
    """A prefix with `FILES`, behind a proxy. `fault` is asked for each request for an object."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.fault: Callable[[bytes], Fault | None] = lambda _: None
        proxy.choose = lambda head: self.fault(head) if head.startswith(b"GET /weights/llama/") else None
        self.options = SourceOptions(endpoint_url=proxy.url, timeout_s=5)

    def listing(self) -> Listing:
        with closing(source_of("s3://weights/llama/", self.options)) as source:
            return source.resolve()

    def fill(self, root: Root, listing: Listing, connections: int = 4) -> tuple[Filled, Snapshot]:
        counters, edge = Counters(), Edge(threading.Event(), chance=lambda: 0.0)
        plan = Plan(Limits(1.0), SETTINGS._replace(connections=connections))
        with closing(source_of(listing.source, self.options)) as source:
            done = fill(root, listing, source, plan, edge, counters, lambda _: None)
        return done, counters.snapshot()

    def bodies(self) -> list[bytes]:
        """Heads of the requests for objects so far."""
        return [head for head in self.proxy.requests if head.startswith(b"GET /weights/llama/")]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    with versitygw(tmp_path / "s3") as gateway, FaultProxy.before(gateway) as proxy:
        client = s3_client(gateway)
        client.create_bucket(Bucket="weights")
        for name, content in FILES.items():
            client.put_object(
                Bucket="weights", Key=f"llama/{name}", Body=content, ChecksumAlgorithm="CRC64NVME"
            )
        yield Small(proxy)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return open_to_write(str(tmp_path / "root"), Rules())


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACCESS_KEY_ID", ACCESS), ("SECRET_ACCESS_KEY", SECRET), ("REGION", REGION)):
        monkeypatch.setenv(f"AWS_{name}", value)


def once(fault: Fault) -> Callable[[bytes], Fault | None]:
    """The fault for the first request for each object."""
    seen: set[bytes] = set()

    def look(head: bytes) -> Fault | None:
        path = head.split(b" ")[1]
        new = path not in seen
        seen.add(path)
        return fault if new else None

    return look


def same(path: str) -> bool:
    return {file.name: file.read_bytes() for file in Path(path).iterdir()} == FILES


def test_each_file_is_one_request(small: Small, root: Root) -> None:
    listing = small.listing()
    assert all(file.digests == () for file in listing.files)
    done, _ = small.fill(root, listing)
    assert same(done.path)
    assert len(small.bodies()) == len(FILES)


def test_a_bit_that_flips_once_is_found_and_the_file_fetched_again(small: Small, root: Root) -> None:
    listing = small.listing()
    small.fault = once(Fault(flip=True, after=AT))
    done, counts = small.fill(root, listing)
    assert same(done.path)
    assert counts.retries == len(FILES)


def test_one_that_flips_each_time_is_integrity_mismatch_and_nothing_of_the_file_is_kept(
    small: Small, root: Root
) -> None:
    listing = small.listing()
    small.fault = lambda head: Fault(flip=True, after=AT) if b"model-3" in head else None
    with pytest.raises(Failure, match="crc64nvme") as caught:
        small.fill(root, listing)
    assert caught.value.reason is Reason.INTEGRITY_MISMATCH
    assert not any(entry.ready for entry in inventory(root.layout))
    small.fault = lambda _: None
    small.proxy.requests.clear()
    done, _ = small.fill(root, listing)
    assert same(done.path)
    assert any(b"model-3" in head for head in small.bodies())


def test_a_file_that_comes_in_two_responses_is_held_to_the_checksum_that_came_with_the_first(
    small: Small, root: Root
) -> None:
    listing = small.listing()
    first = once(Fault(cut=True, after=AT))
    small.fault = lambda head: first(head) or (Fault(flip=True) if b"\r\nRange: " in head else None)
    done, counts = small.fill(root, listing)
    assert same(done.path)
    # Once since it broke off, and once more, whole, since it was wrong.
    assert counts.retries == 2 * len(FILES)
    assert len(small.bodies()) == 3 * len(FILES)


def test_what_an_earlier_run_has_of_a_file_in_part_is_fetched_again(small: Small, tmp_path: Path) -> None:
    listing = small.listing()
    directory = tmp_path / "partial"
    directory.mkdir()
    journal = Journal(str(tmp_path / "journal"))
    for index, file in enumerate(listing.files):
        begin = FILES[file.name][:AT]
        (directory / file.name).write_bytes(begin)
        journal.whole(index, Claim(Range(0, AT), xxhash.xxh3_128(begin).hexdigest()))
    counters = Counters()
    with closing(source_of(listing.source, small.options)) as source:
        transfer(source, listing, str(directory), journal, SETTINGS, Edge(threading.Event()), counters)
    journal.close()
    assert same(str(directory))
    assert not any(b"\r\nRange: " in head for head in small.bodies())
    assert counters.snapshot().bytes_kept == 0


def test_what_it_has_whole_is_kept(small: Small, root: Root) -> None:
    listing = small.listing()
    small.fault = lambda head: Fault(status=403) if b"model-4" in head else None
    with pytest.raises(Failure):
        small.fill(root, listing, connections=1)
    small.fault = lambda _: None
    small.proxy.requests.clear()
    done, counts = small.fill(root, listing)
    assert same(done.path)
    assert counts.bytes_kept == 4 * SIZE
    assert len(small.bodies()) == len(FILES) - 4


def test_an_object_that_is_replaced_midway_is_source_changed(small: Small, root: Root) -> None:
    listing = small.listing()
    small.fault = once(Fault(status=412))
    with pytest.raises(Failure) as caught:
        small.fill(root, listing)
    assert caught.value.reason is Reason.SOURCE_CHANGED

"""Which client reads ranges into threads with the least processor time; the table is in docs/sources.md.

    python -m bench.sources --s3      # S3, from versitygw
    python -m bench.sources           # http, from nginx

Every client reads the same object in the same ranges with the same number of threads, alternating, and throws
the bytes away. Bytes per second of this process' own processor time (user and system, all threads) is what
counts: a node that fetches weights may be serving.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cacheprep.sources import SourceOptions
from cacheprep.sources.body import ResponseBody
from cacheprep.sources.s3_bucket import Bucket
from cacheprep.sources.web import Web
from tests.sources.servers import ACCESS, REGION, SECRET, nginx, versitygw

MIB = 1 << 20
CHUNK = 256 << 10
Read = Callable[[int, int], int]
"""Reads bytes [start, end) and returns how many came."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--s3", action="store_true", help="ask versitygw; without it nginx is asked")
    parser.add_argument("--mib", type=int, default=1024, help="size of the object")
    parser.add_argument("--range-mib", type=int, default=16)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        root = Path(directory)
        (root / "www").mkdir()
        with (root / "www" / "model").open("wb") as file:
            for _ in range(arguments.mib):
                file.write(b"w" * MIB)
        with versitygw(root / "s3") if arguments.s3 else nginx(root) as url:
            clients = s3_clients(url, root / "www" / "model") if arguments.s3 else http_clients(url)
            measure(
                clients, arguments.mib * MIB, arguments.range_mib * MIB, arguments.threads, arguments.rounds
            )


def measure(clients: dict[str, Read], size: int, step: int, threads: int, rounds: int) -> None:
    ranges = [(start, min(start + step, size)) for start in range(0, size, step)]
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
    for turn in range(rounds + 1):
        for name, read in clients.items():
            with ThreadPoolExecutor(threads) as pool:
                before, began = _processor_s(), time.perf_counter()
                count = sum(pool.map(lambda pair, read=read: read(*pair), ranges))
                wall, used = time.perf_counter() - began, _processor_s() - before
            assert count == size, (name, count)
            if turn:  # the first one connects and loads
                figures[name].append((size / 1e9 / used, size / 1e9 / wall))
    print(f"{size / MIB:.0f} MiB in ranges of {step // MIB} MiB, {threads} threads, median of {rounds}")
    print("| client | GB per processor second | GB/s |\n|---|---|---|")
    for name, pairs in figures.items():
        efficiency, rate = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"| {name} | {efficiency:.2f} | {rate:.2f} |")


def s3_clients(endpoint: str, model: Path) -> dict[str, Read]:
    import boto3
    import obstore
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.config import Config
    from botocore.credentials import Credentials
    from obstore.store import S3Store

    keys: dict[str, Any] = {"aws_access_key_id": ACCESS, "aws_secret_access_key": SECRET}
    config = Config(max_pool_connections=64, retries={"total_max_attempts": 1})
    client = boto3.client("s3", endpoint_url=endpoint, region_name=REGION, config=config, **keys)
    client.create_bucket(Bucket="weights")
    client.upload_file(str(model), "weights", "model")
    etag = client.head_object(Bucket="weights", Key="model")["ETag"]
    asked: dict[str, Any] = {"Bucket": "weights", "Key": "model", "IfMatch": etag}
    store = S3Store(
        "weights",
        endpoint=endpoint,
        region=REGION,
        access_key_id=ACCESS,
        secret_access_key=SECRET,
        client_options={"allow_http": True},
    )

    def boto3_body(start: int, end: int) -> int:
        body = client.get_object(Range=f"bytes={start}-{end - 1}", **asked)["Body"]
        return sum(len(chunk) for chunk in body.iter_chunks(CHUNK))

    def obstore_stream(start: int, end: int) -> int:
        options: Any = {"range": (start, end), "if_match": etag}
        return sum(len(chunk) for chunk in obstore.get(store, "model", options=options).stream(CHUNK))

    def obstore_range(start: int, end: int) -> int:
        return len(obstore.get_range(store, "model", start=start, end=end))

    pool = urllib3_pool()

    signer = S3SigV4Auth(Credentials(ACCESS, SECRET), "s3", REGION)

    def signed(start: int, end: int) -> int:
        headers = {"If-Match": etag, "Range": f"bytes={start}-{end - 1}"}
        request = AWSRequest("GET", f"{endpoint}/weights/model", headers=headers)
        signer.add_auth(request)
        response = pool.request("GET", request.url, headers=dict(request.headers), preload_content=False)
        return _drain_urllib3(response)

    os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
    bucket = Bucket("weights", SourceOptions(endpoint_url=endpoint, region=REGION))

    def as_here(start: int, end: int) -> int:
        asked = {"IfMatch": etag, "Range": f"bytes={start}-{end - 1}"}
        with bucket.ask("GET", "model", "model", **asked) as response:
            return _into_memory(response, end - start)

    return {
        "boto3 (get_object, urllib3)": boto3_body,
        "boto3[crt] (awscrt's S3 client)": _crt(endpoint),
        "obstore, stream": obstore_stream,
        "obstore, get_range": obstore_range,
        "urllib3, signed by botocore": signed,
        "the same, into the reader's memory (as cacheprep)": as_here,
    }


def _crt(endpoint: str) -> Read:
    from awscrt import auth, http, io, s3

    host = urlsplit(endpoint).netloc
    group = io.EventLoopGroup(2)
    bootstrap = io.ClientBootstrap(group, io.DefaultHostResolver(group))
    provider = auth.AwsCredentialsProvider.new_static(ACCESS, SECRET)
    config = s3.create_default_s3_signing_config(region=REGION, credential_provider=provider)
    client = s3.S3Client(
        bootstrap=bootstrap,
        region=REGION,
        signing_config=config,
        tls_mode=s3.S3RequestTlsMode.DISABLED,
        part_size=8 * MIB,
        throughput_target_gbps=20,
    )

    def read(start: int, end: int) -> int:
        count = 0

        def body(chunk: Any, offset: int, **_: Any) -> None:
            nonlocal count
            count += len(chunk)

        headers = http.HttpHeaders([("host", host), ("Range", f"bytes={start}-{end - 1}")])
        request = http.HttpRequest("GET", "/weights/model", headers)
        made = client.make_request(
            type=s3.S3RequestType.GET_OBJECT,
            request=request,
            on_body=body,
        )
        made.finished_future.result(60)
        return count

    return read


def http_clients(server: str) -> dict[str, Read]:
    import http.client
    import threading

    import httpx
    import obstore
    import requests
    from obstore.store import HTTPStore

    url, address = f"{server}/model", urlsplit(server)
    pool = urllib3_pool()
    session = requests.Session()
    session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=64))
    client = httpx.Client(limits=httpx.Limits(max_connections=64))
    store = HTTPStore(server, client_options={"allow_http": True})
    local = threading.local()

    def ranged(start: int, end: int) -> dict[str, str]:
        return {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}

    def by_urllib3(start: int, end: int) -> int:
        return _drain_urllib3(pool.request("GET", url, headers=ranged(start, end), preload_content=False))

    def by_urllib3_read1(start: int, end: int) -> int:
        response = pool.request("GET", url, headers=ranged(start, end), preload_content=False)
        count = 0
        while data := response.read1(CHUNK, decode_content=False):
            count += len(data)
        response.release_conn()
        return count

    def by_httpx(start: int, end: int) -> int:
        with client.stream("GET", url, headers=ranged(start, end)) as response:
            return sum(len(chunk) for chunk in response.iter_raw())

    def by_requests(start: int, end: int) -> int:
        with session.get(url, headers=ranged(start, end), stream=True) as response:
            return sum(len(chunk) for chunk in response.iter_content(CHUNK))

    def by_obstore(start: int, end: int) -> int:
        options: Any = {"range": (start, end)}
        return sum(len(chunk) for chunk in obstore.get(store, "model", options=options).stream(CHUNK))

    def by_http_client(start: int, end: int) -> int:
        connection = getattr(local, "connection", None)
        if connection is None:
            connection = local.connection = http.client.HTTPConnection(address.netloc)
        connection.request("GET", "/model", headers=ranged(start, end))
        response = connection.getresponse()
        view, count = memoryview(bytearray(CHUNK)), 0
        while got := response.readinto(view):
            count += got
        return count

    web = Web(30)

    def as_here(start: int, end: int) -> int:
        with web.get(url, ranged(start, end), "model") as response:
            return _into_memory(response, end - start)

    return {
        "urllib3, into the reader's memory (as cacheprep)": as_here,
        "urllib3, read": by_urllib3,
        "urllib3, read1": by_urllib3_read1,
        "httpx": by_httpx,
        "requests": by_requests,
        "obstore, stream": by_obstore,
        "http.client, readinto (the floor)": by_http_client,
    }


def urllib3_pool() -> Any:
    import urllib3

    return urllib3.PoolManager(maxsize=64, retries=False)


def _drain_urllib3(response: Any) -> int:
    assert response.status == 206, response.status
    count = sum(len(chunk) for chunk in response.stream(CHUNK, decode_content=False))
    response.release_conn()
    return count


def _into_memory(response: Any, length: int) -> int:
    body, view, count = ResponseBody(response, length, "model"), memoryview(bytearray(4 * CHUNK)), 0
    while came := body.readinto(view):
        count += came
    return count


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()

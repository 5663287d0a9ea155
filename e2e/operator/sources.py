"""Where models come from: a real S3 server and a Hub on this machine, as the nodes' pods reach them."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from e2e.cluster.command import run
from e2e.operator.relay import Relay
from tests.sources.hub import Hub, Repository
from tests.sources.servers import ACCESS, REGION, SECRET, s3_client, versitygw

Json = dict[str, Any]
BUCKET = "models"
SECRET_NAME, TOKEN_NAME = "store", "hub"
TOKEN = "hf_of_the_stories"
"""What private repositories of the Hub ask for."""


def address() -> str:
    """This machine's address on the nodes' network. Raises `ClusterError`."""
    (network,) = json.loads(run("docker", "network", "inspect", "kind"))
    return next(str(one["Gateway"]) for one in network["IPAM"]["Config"] if "." in one.get("Gateway", ""))


def model(seed: int, files: int = 3, size: int = 4 << 20) -> dict[str, bytes]:
    """Files of a model that no other seed has; `size` is in bytes, of each."""
    draw = random.Random(seed)
    weights = {f"model-{number:05}.safetensors": draw.randbytes(size) for number in range(files)}
    return {"config.json": json.dumps({"seed": seed}).encode(), "tokenizer/vocab.txt": b"a\nb\n", **weights}


def total(files: Mapping[str, bytes]) -> int:
    """Bytes of a model."""
    return sum(map(len, files.values()))


class ObjectStore:
    """versitygw, which pods reach through `relay`."""

    def __init__(self, url: str, relay: Relay, host: str) -> None:
        self.relay = relay
        self._endpoint = f"http://{host}:{relay.port}"
        self._client = s3_client(url)
        self._client.create_bucket(Bucket=BUCKET)

    def put(self, prefix: str, files: Mapping[str, bytes]) -> None:
        """Have exactly these files below a prefix."""
        listed = self._client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", ())
        for key in {one["Key"] for one in listed} - {f"{prefix}/{name}" for name in files}:
            self._client.delete_object(Bucket=BUCKET, Key=key)
        for name, content in files.items():
            self._client.put_object(
                Bucket=BUCKET, Key=f"{prefix}/{name}", Body=content, ChecksumAlgorithm="SHA256"
            )

    def source(self, prefix: str) -> Json:
        """`modelSource` of an endpoint."""
        return {
            "s3": {
                "uri": f"s3://{BUCKET}/{prefix}/",
                "region": REGION,
                "endpointUrl": self._endpoint,
                "credentialsSecretRef": {"name": SECRET_NAME},
            }
        }


@contextlib.contextmanager
def object_store(directory: Path) -> Iterator[ObjectStore]:
    """An object store that is gone when the block ends."""
    host = address()
    with versitygw(directory) as url:
        server = urlsplit(url)
        assert server.hostname
        assert server.port
        with Relay(host, (server.hostname, server.port)).running() as relay:
            yield ObjectStore(url, relay, host)


def credentials(secret: str = SECRET) -> Json:
    """What the Secret for the object store says."""
    return {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": secret}


@contextlib.contextmanager
def hub() -> Iterator[Hub]:
    """A Hub of the nodes' network that is gone when the block ends."""
    with Hub.running(address()) as running:
        yield running


def repository(running: Hub, name: str, files: Mapping[str, bytes]) -> Json:
    """A private repository with these files; returns `modelSource` of an endpoint, with its commit."""
    made = running.repositories[name] = Repository(private=TOKEN)
    commit = made.commit(dict(files))
    return {
        "huggingFace": {
            "repository": name,
            "commitSHA": commit,
            "endpointUrl": running.url,
            "tokenSecretRef": {"name": TOKEN_NAME, "key": "token"},
        }
    }

"""The tools that are compared, as commands from a source to an empty directory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.fetch.hub import REPOSITORY
from tests.sources.servers import ACCESS, REGION, SECRET

KEYS = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}
CONNECTIONS = 16

BOTO3 = """
import os, sys, boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from s3transfer.manager import TransferManager
url, bucket, prefix, to = sys.argv[1:]
client = boto3.client("s3", endpoint_url=url, config=Config(max_pool_connections=16))
pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix + "/")
with TransferManager(client, TransferConfig(max_concurrency=16)) as manager:
    for page in pages:
        for entry in page["Contents"]:
            path = os.path.join(to, entry["Key"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            manager.download(bucket, entry["Key"], path)
"""
"""boto3's transfer manager over a prefix, as many connections as the others."""


class Tool(NamedTuple):
    """A command, and what its environment has beside."""

    command: Sequence[str | Path]
    environment: Mapping[str, str] = {}
    verifies: bool = False
    """Whether what it leaves was compared with a digest."""


def of_s3(url: str, bucket: str, prefix: str, to: Path) -> dict[str, Tool]:
    """What fetches a prefix of a bucket."""
    endpoint = f"--endpoint-url={url}"
    return {
        "cacheprep": Tool(_ours(f"s3://{bucket}/{prefix}", to, endpoint), KEYS, verifies=True),
        "s5cmd": Tool([_beside("s5cmd"), endpoint, "cp", f"s3://{bucket}/{prefix}/*", f"{to}/"], KEYS),
        "boto3": Tool([sys.executable, "-c", BOTO3, url, bucket, prefix, to], KEYS),
    }


def of_hub(url: str, to: Path) -> dict[str, Tool]:
    """What fetches a repository of a Hub."""
    hub = {
        "HF_ENDPOINT": url,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": f"{to}.hf",
    }
    workers = ["--max-workers", str(CONNECTIONS), "--quiet"]
    return {
        "cacheprep": Tool(_ours(f"hf://{REPOSITORY}", to), hub, verifies=True),
        "hf download": Tool([_beside("hf"), "download", REPOSITORY, "--local-dir", to, *workers], hub),
    }


def of_files(source: Path, to: Path) -> dict[str, Tool]:
    """What copies a directory."""
    return {
        "cacheprep": Tool(_ours(str(source), to), verifies=True),
        "cp": Tool(["cp", "-r", source, to]),
    }


def _ours(source: str, to: Path, *options: str) -> list[str | Path]:
    name = ["fetch", source, "--to", str(to), "--connections", str(CONNECTIONS), "--quiet"]
    return [_beside("cacheprep"), *name, "--watermark", "99%", *options]


def _beside(name: str) -> Path:
    """A command of this environment."""
    return Path(sys.executable).with_name(name)

"""`cacheprep sources resolve`, and what another machine makes of the listing that it saved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest

from cacheprep.failures import Reason
from cacheprep.listing import Listing

FILES = {"config.json": b"{}", "weights/model.safetensors": bytes(range(256)) * 1000}


def cacheprep(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from cacheprep.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(content)
    return tmp_path / "source"


def published(fetched: subprocess.CompletedProcess[str]) -> dict[str, bytes]:
    assert fetched.returncode == 0, fetched.stderr
    path = Path(json.loads(fetched.stdout)["path"])
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_table_for_people(source: Path) -> None:
    said = cacheprep("sources", "resolve", str(source))
    assert said.returncode == 0, said.stderr
    assert "weights/model.safetensors  256.0 kB" in said.stdout
    assert "2 files, 256.0 kB, first-read, key " in said.stdout


def test_an_object_for_programs(source: Path) -> None:
    said = json.loads(cacheprep("sources", "resolve", str(source), "--json").stdout)
    assert (said["bytes"], said["verification"]) == (256_002, "first-read")
    assert [file["name"] for file in said["files"]] == sorted(FILES)


def test_patterns_and_their_remedy(source: Path) -> None:
    said = cacheprep("sources", "resolve", str(source), "--allow", "*.json", "-o", "-")
    assert [file.name for file in Listing.from_json(said.stdout.strip().encode()).files] == ["config.json"]
    said = cacheprep("sources", "resolve", str(source), "--allow", "*.gguf")
    assert said.returncode == Reason.INVALID_REQUEST.exit_code
    assert "patterns" in said.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("ftp://host/x",), Reason.INVALID_REQUEST),
        (("s3://bucket/x", "--endpoint-url", "127.0.0.1"), Reason.INVALID_REQUEST),
        (("/proc/1/mem/x",), Reason.INVALID_REQUEST),
    ],
)
def test_exit_codes_are_those_of_the_reasons(arguments: tuple[str, ...], reason: Reason) -> None:
    said = cacheprep("sources", "resolve", *arguments)
    assert said.returncode == reason.exit_code
    assert said.stderr.startswith(f"{reason}: ")
    assert "Traceback" not in said.stderr


def test_a_listing_that_cannot_be_written_leaves_nothing(source: Path, tmp_path: Path) -> None:
    said = cacheprep("sources", "resolve", str(source), "-o", str(tmp_path / "no" / "listing.json"))
    assert said.returncode == Reason.INVALID_REQUEST.exit_code
    assert "--output" in said.stderr


def test_a_saved_listing_fetches_the_same_bytes_elsewhere_or_is_source_changed(
    s3_gateway: str, tmp_path: Path
) -> None:
    client: Any = boto3.client("s3", endpoint_url=s3_gateway, region_name="us-east-1")
    client.create_bucket(Bucket="saved")
    for name, content in FILES.items():
        client.put_object(Bucket="saved", Key=f"llama/{name}", Body=content, ChecksumAlgorithm="SHA256")
    listing = tmp_path / "listing.json"
    at = ("--endpoint-url", s3_gateway)
    assert cacheprep("sources", "resolve", "s3://saved/llama", *at, "-o", str(listing)).returncode == 0
    fetch = ("fetch", "--listing", str(listing), *at, "--allow-shared-disk", "--json", "--to")
    assert published(cacheprep(*fetch, str(tmp_path / "one"))) == FILES
    client.put_object(Bucket="saved", Key="llama/config.json", Body=b"[]")
    changed = cacheprep(*fetch, str(tmp_path / "two"))
    assert changed.returncode == Reason.SOURCE_CHANGED.exit_code
    listed = json.loads(cacheprep("ls", "--json", "--to", str(tmp_path / "two")).stdout)
    assert not any(entry["ready"] for entry in listed)

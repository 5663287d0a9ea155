"""Servers that are shared by the tests of a file, and an environment without anybody's credentials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources.servers import ACCESS, REGION, SECRET, moto, versitygw


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Credentials of the test servers and of nothing else."""
    for name in (
        "AWS_PROFILE",
        "AWS_SESSION_TOKEN",
        "AWS_DEFAULT_REGION",
        "HF_TOKEN",
        "HF_ENDPOINT",
        "HF_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in (
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "no_proxy",
        "NO_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    return monkeypatch


@pytest.fixture(scope="session")
def s3_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a versitygw without versions."""
    with versitygw(tmp_path_factory.mktemp("versitygw")) as url:
        yield url


@pytest.fixture(scope="session")
def versioned_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a versitygw that can keep versions."""
    with versitygw(tmp_path_factory.mktemp("versitygw"), versions=True) as url:
        yield url


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of moto's server."""
    with moto(tmp_path_factory.mktemp("moto")) as url:
        yield url

"""A kubeconfig that is none is said to be none, whatever is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.pool.discovery.kubernetes import ApiError, connected


@pytest.mark.parametrize(
    "content",
    ["", "some words", "[a, list]", "clusters: 5", "a: [", "clusters: [5]\ncurrent-context: a"],
    ids=["empty", "words", "list", "number", "no YAML", "no names"],
)
async def test_a_file_that_is_no_kubeconfig_is_named(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(ApiError, match="no Kubernetes") as refused:
        async with connected():
            pass
    assert str(file) in str(refused.value)


async def test_one_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    with pytest.raises(ApiError, match=f"there is no {tmp_path}/nowhere"):
        async with connected():
            pass

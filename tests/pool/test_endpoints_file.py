"""Endpoints in a file: read, watched however it is replaced, and kept when it is bad."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extproc import strict_yaml
from extproc.pool.discovery import file
from extproc.pool.discovery.found import Found

A, B, C = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"
PATIENCE = 10.0
"""Seconds; what is awaited here comes within two, or never."""


@pytest.mark.parametrize(
    ("content", "addresses"),
    [
        (f"- {A}\n- {B}\n", (A, B)),
        (f"endpoints:\n- {B}\n- {A}\n", (B, A)),
        (f'["{A}", "{A}", "[::0001]:80"]', (A, "[::1]:80")),
        ("[]", ()),
        ("endpoints: []", ()),
    ],
)
def test_a_list_or_a_mapping_with_one_is_read(
    tmp_path: Path, content: str, addresses: tuple[str, ...]
) -> None:
    path = tmp_path / "eps.yaml"
    path.write_text(content)
    assert file.read(path) == Found(addresses)


def test_endpoints_on_nodes_that_are_not_prepared_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "eps.yaml"
    path.write_text(
        f"- {A}\n- {{address: {B}, cold: true}}\n- {{address: {C}, cold: false}}\n- address: {A}\n"
    )
    assert file.read(path) == Found((A, B, C), {B: "cold", C: "warm"})


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "write \\[\\] for no endpoints"),
        (b"endpoints:\n", "write \\[\\] for no endpoints"),
        (b"- 10.0.0.1:80\n- engine-7:80\n", "engine-7:80"),
        (b"- 8000\n", "8000"),
        (b"- {address: 10.0.0.1:80, cold: 1}", "10.0.0.1:80: cold: 1: must be true or false"),
        (
            b"- {address: 10.0.0.1:80, warm: true}",
            "10.0.0.1:80: unknown key 'warm': expected address and cold",
        ),
        (b"- {cold: true}", "cold"),
        (b"10.0.0.1:80", "expected a list"),
        (b"servers: [10.0.0.1:80]", "expected a list"),
        (b"endpoints: []\nmore: 1", "expected a list"),
        (b"[", "not YAML"),
        (b"\xff\xfe\x00", "not YAML"),
        (b"- !!python/object/apply:os.getcwd []", "eps.yaml"),
        (b'- "\\U00110000"', "not YAML"),
        (b'- "\\UFFFFFFFF"', "not YAML"),
        (b'- "\\ud800"', "not YAML"),
        (b"#" * (file.MAX_BYTES + 1), "larger than 4194304 bytes"),
    ],
)
def test_a_bad_file_is_refused_by_its_name_and_fault(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "eps.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=fault) as refused:
        file.read(path)
    assert str(path) in str(refused.value)


def test_a_missing_file_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.yaml: No such file"):
        file.read(tmp_path / "absent.yaml")


class Watched:
    """What a watch has said so far."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
        self.errors: asyncio.Queue[ValueError] = asyncio.Queue()

    async def change(self) -> tuple[str, ...]:
        return await asyncio.wait_for(self.changes.get(), PATIENCE)

    async def error(self) -> str:
        return str(await asyncio.wait_for(self.errors.get(), PATIENCE))


@asynccontextmanager
async def watching(path: Path) -> AsyncIterator[Watched]:
    said = Watched()
    task = asyncio.create_task(
        file.watch(path, lambda listed: said.changes.put_nowait(listed.addresses), said.errors.put_nowait)
    )
    try:
        yield said
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def replace(path: Path, content: str) -> None:
    new = path.with_name("new")
    new.write_text(content)
    new.replace(path)


async def test_a_file_is_told_at_once_and_again_when_it_is_written_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "eps.yaml"
    path.write_text(f"- {A}")
    async with watching(path) as said:
        assert await said.change() == (A,)
        path.write_text(f"- {A}\n- {B}")
        assert await said.change() == (A, B)
        replace(path, f"- {C}")
        assert await said.change() == (C,)
        replace(path, f"- {B}")
        assert await said.change() == (B,)
        assert said.errors.empty()


async def test_a_mounted_config_map_whose_link_is_swapped_is_seen(tmp_path: Path) -> None:
    def publish(version: str, content: str) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / version / "eps.yaml").write_text(content)
        (tmp_path / "..data_tmp").symlink_to(version)
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")

    publish("..v1", f"- {A}")
    path = tmp_path / "eps.yaml"
    path.symlink_to(os.path.join("..data", "eps.yaml"))
    async with watching(path) as said:
        assert await said.change() == (A,)
        for version, address in (("..v2", B), ("..v3", C), ("..v4", A)):
            publish(version, f"- {address}")
            assert await said.change() == (address,)
        assert said.errors.empty()


async def test_a_link_to_a_file_elsewhere_follows_that_file(tmp_path: Path) -> None:
    real = tmp_path / "elsewhere" / "real.yaml"
    real.parent.mkdir()
    real.write_text(f"- {A}")
    path = tmp_path / "here" / "eps.yaml"
    path.parent.mkdir()
    path.symlink_to(real)
    async with watching(path) as said:
        assert await said.change() == (A,)
        replace(real, f"- {B}")
        assert await said.change() == (B,)


async def test_a_bad_file_is_told_as_an_error_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "eps.yaml"
    path.write_text(f"- {A}")
    async with watching(path) as said:
        assert await said.change() == (A,)
        replace(path, "- engine-7:80")
        assert "engine-7:80" in await said.error()
        path.unlink()
        assert "No such file" in await said.error()
        replace(path, f"- {A}")
        replace(path, f"- {B}")
        while await said.change() != (B,):
            pass


async def test_a_file_that_is_not_there_yet_is_an_error_until_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "later" / "eps.yaml"
    async with watching(path) as said:
        assert "No such file" in await said.error()
        assert said.changes.empty()
        path.parent.mkdir()
        replace(path, f"- {A}")
        assert await said.change() == (A,)


async def test_what_is_written_without_a_change_is_not_told(tmp_path: Path) -> None:
    path = tmp_path / "eps.yaml"
    path.write_text(f"- {A}")
    async with watching(path) as said:
        assert await said.change() == (A,)
        replace(path, f"endpoints: ['{A}']")
        replace(path, f"- {A}  # the same")
        replace(path, f"- {B}")
        assert await said.change() == (B,)
        assert said.changes.empty()


@pytest.mark.parametrize("bad", ["loop of links", "name too long", "no text"])
async def test_whatever_stands_in_its_place_a_good_file_is_taken_afterwards(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "eps.yaml"
    if bad == "loop of links":
        path.symlink_to(path)
    elif bad == "name too long":
        path.symlink_to("x" * 300 + "/eps.yaml")
    else:
        path.write_text('- "\\UFFFFFFFF"')
    async with watching(path) as said:
        assert str(path) in await said.error()
        replace(path, f"- {A}")
        assert await said.change() == (A,)


async def test_a_file_that_stays_as_it_is_is_not_parsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "eps.yaml"
    path.write_text(f"- {A}")
    parsed: list[str] = []

    def parse(text: str) -> strict_yaml.Document:
        parsed.append(text)
        return read_yaml(text)

    async def looks(_path: Path, _seconds: float) -> AsyncIterator[None]:
        for content in (None, None, "- bad", None, f"- {A}", None, "", f"- {A}"):
            if content is not None:
                path.unlink() if not content else path.write_text(content)
            yield

    read_yaml = strict_yaml.read
    monkeypatch.setattr(strict_yaml, "read", parse)
    monkeypatch.setattr(file, "moments", looks)
    said = Watched()
    await file.watch(path, lambda listed: said.changes.put_nowait(listed.addresses), said.errors.put_nowait)
    assert parsed == [f"- {A}", "- bad", f"- {A}", f"- {A}"]
    assert (said.changes.qsize(), said.errors.qsize()) == (1, 2)

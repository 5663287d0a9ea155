"""A transfer from a directory on this machine."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from cacheprep.listing import File
from cacheprep.sources import source_of
from cacheprep.sources.options import SourceOptions
from cacheprep.transfer import engine
from cacheprep.transfer.counters import Counters
from cacheprep.transfer.engine import Edge, Settings, transfer
from cacheprep.transfer.journal import Journal
from cacheprep.transfer.partial import PartialFile
from cacheprep.transfer.pieces import Pieces


def test_while_one_file_is_being_opened_others_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, to = tmp_path / "origin", tmp_path / "to"
    to.mkdir()
    origin.mkdir()
    for name in ("slow", "b", "c", "d"):
        (origin / name).write_bytes(name.encode() * 1000)
    others_done = threading.Event()

    def opened(path: str, file: File, pieces: Pieces) -> PartialFile:
        if file.name == "slow":
            assert others_done.wait(20), "nothing was fetched meanwhile"
        return PartialFile(path, file, pieces)

    class Counted(Counters):
        def add(self, **amounts: int) -> None:
            super().add(**amounts)
            if self.snapshot().files_done == 3:
                others_done.set()

    monkeypatch.setattr(engine, "PartialFile", opened)
    source = source_of(str(origin), SourceOptions())
    with closing(Journal(str(tmp_path / "journal"))) as journal:
        transfer(
            source, source.resolve(), str(to), journal, Settings(connections=2),
            Edge(threading.Event()), Counted(),
        )  # fmt: skip
    assert (to / "slow").read_bytes() == b"slow" * 1000

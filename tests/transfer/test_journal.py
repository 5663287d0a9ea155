"""The journal of a transfer, as connections write it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cacheprep.transfer.journal import HASH_HEX, Claim, Journal
from cacheprep.transfer.ranges import Range

FILES, EACH = 8, 200
HASH = "0" * HASH_HEX


def test_lines_of_many_connections_are_all_there_and_whole(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal"))

    def write(index: int) -> None:
        for at in range(EACH):
            journal.whole(index, Claim(Range(at, at + 1), HASH))

    with ThreadPoolExecutor(FILES) as threads:
        list(threads.map(write, range(FILES)))
    claims = journal.read([EACH] * FILES)
    journal.close()
    every = [Claim(Range(at, at + 1), HASH) for at in range(EACH)]
    assert claims == dict.fromkeys(range(FILES), every)


def test_what_comes_after_it_was_closed_is_lost_and_goes_nowhere_else(tmp_path: Path) -> None:
    least = os.dup(0)
    os.close(least)
    journal = Journal(str(tmp_path / "journal"))
    journal.close()
    with (tmp_path / "other").open("w") as other:
        assert other.fileno() == least  # which the journal had
        journal.whole(0, Claim(Range(0, 1), HASH))
    assert (tmp_path / "other").read_bytes() == b""
    assert Journal(str(tmp_path / "journal")).read([1]) == {}

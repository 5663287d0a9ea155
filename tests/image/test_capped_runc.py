"""runc on a machine that lacks capabilities is asked for no more than there are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from e2e.cluster import capped_runc


def test_every_capability_of_this_kernel_has_a_name() -> None:
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    assert len(capped_runc.names((1 << last + 1) - 1)) == last + 1


def test_what_cannot_be_granted_is_not_asked_for_and_the_rest_stays() -> None:
    process = {
        "args": ["sh"],
        "capabilities": {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE"], "ambient": ["CAP_SYS_RESOURCE"]},
        "oomScoreAdj": -999,
    }
    capped_runc.cap(process, {"CAP_CHOWN", "CAP_KILL"})
    assert process == {
        "args": ["sh"],
        "capabilities": {"bounding": ["CAP_CHOWN"], "ambient": []},
        "oomScoreAdj": 0,
    }


def test_containers_and_processes_in_them_are_capped_before_runc_reads_them(tmp_path: Path) -> None:
    # runc that tells how it was called, and a wrapper that finds it.
    runc = tmp_path / "runc"
    runc.write_text('#!/bin/sh\necho "$@"\n')
    runc.chmod(0o755)
    wrapper = tmp_path / "capped"
    wrapper.write_text(Path(capped_runc.__file__).read_text().replace("/usr/sbin/runc", str(runc)))
    (tmp_path / "config.json").write_text(json.dumps({"process": {"oomScoreAdj": -1}, "root": {}}))
    (tmp_path / "process.json").write_text(json.dumps({"oomScoreAdj": -1}))

    def call(*words: str) -> str:
        done = subprocess.run([sys.executable, wrapper, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    created = ("--root", "/run/runc", "create", "--bundle", str(tmp_path), "one")
    assert call(*created) == " ".join(created)
    assert json.loads((tmp_path / "config.json").read_text()) == {"process": {"oomScoreAdj": 0}, "root": {}}
    executed = ("exec", f"--process={tmp_path / 'process.json'}", "one")
    assert call(*executed) == " ".join(executed)
    assert json.loads((tmp_path / "process.json").read_text()) == {"oomScoreAdj": 0}
    assert call("state", "one") == "state one"

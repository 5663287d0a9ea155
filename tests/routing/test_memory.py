"""What strategies learn stays bounded, however many prompts come that never come again."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from extproc.routing.sent import GENERATION_BYTES

ROOT = Path(__file__).parents[2]
MB = 1e6
LATEST_MB = 10
"""Whole prompts that are kept for a replica that starts."""


@cache
def measured() -> dict[str, Any]:
    """Each strategy over 200,000 prompts of up to 20 block keys, in processes of their own."""
    options = ["--requests", "200000", "--most-keys", "20", "--jobs", "2", "--json"]
    command = [sys.executable, "-m", "bench.memory", *options]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("strategy", "most_mb"),
    [
        ("RANDOM", 1),
        ("LEAST_OUTSTANDING_REQUESTS", 1),
        ("PREFIX_AWARE", 2 * GENERATION_BYTES / MB + LATEST_MB),
        ("PREFIX_AWARE, prefixLength 4096", 4),
    ],
)
def test_it_is_bounded(strategy: str, most_mb: float) -> None:
    found = measured()[strategy]
    assert found["requests"] == 200_000
    assert found["state_mb"] < most_mb
    # The process has grown by no more than that and what the interpreter's allocator cannot give back.
    assert found["most_mb"] < 1.5 * most_mb + 10
    assert found["second_half_mb"] < 0.15 * most_mb + 2


def test_the_table_of_prefixes_had_to_forget_for_that() -> None:
    found = measured()["PREFIX_AWARE"]
    # Some 1.4 million different keys were seen.
    assert 100_000 < found["keys"] < 700_000
    assert found["bytes_per_key"] < 2 * 140

"""`cacheprep estimate`: sums, and the command around them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import moto
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cacheprep.commands.estimate import command, duration
from cacheprep.estimate import NODE_TYPES, estimate
from cacheprep.failures import Failure

GB = 10**9


def test_a_model_that_fits() -> None:
    found = estimate(140 * GB, 3840 * GB, bandwidth=1.25e9, disk_read=7e9, watermark=0.95)
    assert found.share == pytest.approx(140 / 3840)
    assert found.fits == 26
    assert (found.fill_s, found.read_s, found.saved_s) == (112, 20, 92)


def test_a_model_that_does_not() -> None:
    assert estimate(240 * GB, 250 * GB, bandwidth=1e9, disk_read=7e9, watermark=0.95).fits == 0


@given(*[st.integers(1, 10**15)] * 4)
def test_nothing_is_saved_where_the_disk_is_not_faster(
    model: int, disk: int, bandwidth: int, read: int
) -> None:
    found = estimate(model, disk, bandwidth=bandwidth, disk_read=read, watermark=1.0)
    assert (found.saved_s == 0) == (read <= bandwidth)
    assert found.fits * model <= disk


def test_nothing_comes_of_nothing() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        estimate(0, 1, bandwidth=1, disk_read=1, watermark=1)


def ran(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_asks_the_source_for_the_size(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"w" * 5000)
    (tmp_path / "model.bin").write_bytes(b"w" * 9000)
    said = json.loads(
        ran(str(tmp_path), "--ignore", "*.bin", "--disk", "1MB", "--bandwidth", "1kB", "--json")
    )
    assert said["bytes"] == 5000
    assert said["share"] == 0.005
    assert said["fill_s"] == 5
    assert said["source"] == f"file://{tmp_path}"


def test_or_is_told_it() -> None:
    said = ran("--size", "140GB", "--node-type", "ml.p5.48xlarge")
    assert "140.0 GB" in said
    assert "30.40 TB" in said
    assert "1 min 52 s" in said


def test_every_known_node_type_is_listed() -> None:
    assert [line.split()[0] for line in ran("--node-types").splitlines()] == list(NODE_TYPES)


def test_their_disks_are_those_that_the_ec2_api_tells() -> None:
    # moto answers DescribeInstanceTypes with what the real API said.
    path = Path(moto.__file__).parent / "ec2" / "resources" / "instance_types.json.gz"
    told = json.loads(gzip.decompress(path.read_bytes()))
    sizes = {
        name: told[name]["InstanceStorageInfo"]["TotalSizeInGB"] * GB for name in NODE_TYPES if name in told
    }
    assert sizes == {name: size for name, size in NODE_TYPES.items() if name in told}
    assert len(sizes) > 40


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--size", "1GB"),
        ("--disk", "1GB"),
        ("--size", "1GB", "--node-type", "t2.micro"),
        ("--size", "1GB", "--disk", "1GB", "--node-type", "g5.xlarge"),
    ],
)
def test_too_little_too_much_and_unknown_are_refused(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(command, arguments)
    assert isinstance(result.exception, Failure)


def test_a_size_of_nothing_is_refused_by_its_option() -> None:
    result = CliRunner().invoke(command, ("--size", "1GB", "--disk", "0GB"))
    assert result.exit_code == 2
    assert "Invalid value for '--disk': '0GB' is too little; it takes 1B at least" in result.output


def test_the_nearest_node_type_is_named() -> None:
    result = CliRunner().invoke(command, ("--size", "1GB", "--node-type", "p5.48xlrge"))
    assert "did you mean p5.48xlarge?" in str(result.exception)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.04, "0.0 s"), (12.4, "12 s"), (200, "3 min 20 s"), (3900, "1 h 5 min")]
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said

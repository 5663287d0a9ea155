"""Messages between replicas: what is written is read again, and what no replica writes is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from grpc_tools import protoc
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.picker import Picked
from extproc.prefix import MAX_KEYS, BlockKeys
from extproc.sharing.batches import (
    MAX_CONTENT,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGE_KEYS,
    MAX_PICKS,
    MESSAGE_BYTES,
    SCHEME,
    Heard,
    MalformedError,
    Message,
    Writer,
    picks,
    read,
    waited,
)
from extproc.sharing.picks_pb2 import Batch, Pick, PoolPicks
from tests.sharing.traffic import ENDPOINTS, chains, pick, prompt_keys

ROOT = Path(__file__).parent.parent.parent


def written(told: list[Picked], made: float = 100.0) -> list[Message]:
    writer = Writer(7, count(1), made)
    messages = [full for one in told if (full := writer.add(one))]
    return messages + ([last] if (last := writer.finish()) else [])


def heard(data: bytes) -> list[tuple[str, Heard]]:
    batch = read(data)
    return [(part.pool, one) for part in batch.pools for one in picks(batch, part)]


def complaint(*parts: PoolPicks) -> str:
    with pytest.raises(MalformedError) as caught:
        heard(Batch(instance=1, pools=parts).SerializeToString())
    return str(caught.value)


class TestWhatIsWritten:
    @given(chains(), st.data())
    def test_is_read_again_by_pool_in_order(self, told: list[BlockKeys], data: st.DataObject) -> None:
        made = [
            pick(
                chain,
                data.draw(st.sampled_from(ENDPOINTS)),
                100.0 - data.draw(st.integers(0, 60_000)) / 1000,
                data.draw(st.sampled_from(["a", "b"])),
            )
            for chain in told
        ]
        found = [one for message in written(made) for one in heard(message.data)]
        for pool in ("a", "b"):
            assert [
                (one.keys, one.address, pytest.approx(one.age)) for name, one in found if name == pool
            ] == [(one.keys, one.address, pytest.approx(100.0 - one.at)) for one in made if one.pool == pool]

    @settings(max_examples=20)
    @given(st.integers(1, 300), st.integers(1, MAX_KEYS), st.booleans())
    def test_is_within_what_is_read_however_much_it_is(self, number: int, keys: int, alike: bool) -> None:
        told = [
            pick(
                BlockKeys(
                    [k if alike else n << 32 | k for k in range(keys)], [65_000 * k for k in range(keys)]
                )
            )
            for n in range(number)
        ]
        messages = written(told)
        assert (
            sum(message.picks for message in messages) == number == sum(len(heard(m.data)) for m in messages)
        )
        assert all(len(message.data) <= MAX_MESSAGE_BYTES for message in messages)

    def test_is_split_by_bytes_picks_and_block_keys(self) -> None:
        unlike = [pick(BlockKeys([n << 32 | k for k in range(40)], list(range(40)))) for n in range(2000)]
        assert all(abs(len(m.data) - MESSAGE_BYTES) < MESSAGE_BYTES / 4 for m in written(unlike)[:-1])
        assert [m.picks for m in written([pick("short")] * (MAX_PICKS + 1))] == [MAX_PICKS, 1]
        long = pick(BlockKeys(list(range(MAX_KEYS)), list(range(MAX_KEYS))))
        assert [m.picks for m in written([long] * 129)] == [MAX_MESSAGE_KEYS // MAX_KEYS, 1]

    def test_has_what_prompts_have_in_common_once(self) -> None:
        system = "Answer as a pirate would. " * 400
        one = prompt_keys("Where is the gold?", system)
        other = prompt_keys("Where is the rum?", system)
        new = len([key for key in other.keys if key not in one.keys])
        assert new < 10 < len(other.keys)
        alone = len(written([pick(one)])[0].data)
        assert len(written([pick(one), pick(other)])[0].data) - alone < 12 * new + 24

    def test_counts_its_messages_so_that_one_that_comes_twice_is_known(self) -> None:
        writer = Writer(7, count(5), 0.0)
        numbers = []
        for _ in range(2):
            writer.add(pick("a"))
            last = writer.finish()
            assert last is not None
            numbers.append(read(last.data).sequence)
        assert numbers == [5, 6]
        assert writer.finish() is None

    def test_holds_hashes_and_endpoints_and_no_text(self) -> None:
        (message,) = written([pick("the secret plan of the pirates " * 50)])
        assert b"secret" not in message.data
        assert b"pirate" not in message.data

    def test_ages_by_as_long_as_it_waits(self) -> None:
        (message,) = written([pick("a", at=99.0)])
        ((_, one),) = heard(waited(waited(message.data, 0.1), 2.5))
        assert one.age == pytest.approx(3.5)

    def test_is_the_same_number_of_bytes_for_a_hash_of_any_size(self) -> None:
        low, high = (written([pick(BlockKeys([key], [9]))])[0].data for key in (1, 2**64 - 1))
        assert len(low) == len(high)


class TestWhatIsRead:
    @given(st.binary(max_size=400))
    def test_is_a_batch_or_refused_whatever_the_bytes_are(self, data: bytes) -> None:
        try:
            found = heard(data)
        except MalformedError:
            return
        assert all(0 < len(one.keys.keys) == len(one.keys.ends) <= MAX_KEYS for _, one in found)
        assert all(one.keys.ends == sorted(one.keys.ends) for _, one in found)

    @given(chains(), st.data())
    def test_is_a_batch_or_refused_whatever_a_bit_on_the_way_became(
        self, told: list[BlockKeys], data: st.DataObject
    ) -> None:
        (message,) = written([pick(chain) for chain in told])
        damaged = bytearray(message.data)
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        try:
            found = heard(bytes(damaged))
        except MalformedError:
            return
        assert all(0 < len(one.keys.keys) == len(one.keys.ends) <= MAX_KEYS for _, one in found)

    def test_may_have_fields_that_a_later_version_adds(self) -> None:
        (message,) = written([pick("a")])
        later = message.data + bytes([0xFA, 0x01, 3]) + b"new"  # field 31, three bytes
        assert heard(later) == heard(message.data)

    def test_has_endpoints_of_the_table_only(self) -> None:
        assert "table" in complaint(PoolPicks(endpoints=["a"], picks=[Pick(endpoint=1, keys=[1], ends=[1])]))

    def test_has_as_many_ends_as_keys(self) -> None:
        assert "ends" in complaint(PoolPicks(endpoints=["a"], picks=[Pick(keys=[1, 2], ends=[1])]))

    @pytest.mark.parametrize("keys", [0, MAX_KEYS + 1])
    def test_has_one_to_1024_keys_for_a_pick(self, keys: int) -> None:
        one = Pick(keys=range(keys), ends=[1] * keys)
        assert "block keys" in complaint(PoolPicks(endpoints=["a"], picks=[one]))

    @pytest.mark.parametrize("steps", [[MAX_CONTENT + 1], [MAX_CONTENT, 1], [2**32 - 1] * MAX_KEYS])
    def test_covers_no_more_content_than_there_can_be(self, steps: list[int]) -> None:
        one = Pick(keys=range(len(steps)), ends=steps)
        assert "content" in complaint(PoolPicks(endpoints=["a"], picks=[one]))

    @pytest.mark.parametrize(
        "later", [Pick(like=1, shared=1), Pick(like=0, shared=2), Pick(like=2**32 - 1, shared=1)]
    )
    def test_has_in_common_only_what_came_before(self, later: Pick) -> None:
        first = Pick(keys=[1], ends=[1])
        assert "in common" in complaint(PoolPicks(endpoints=["a"], picks=[first, later]))

    def test_is_no_small_message_that_stands_for_many_keys(self) -> None:
        first = Pick(keys=range(MAX_KEYS), ends=[1] * MAX_KEYS)
        again = [Pick(shared=MAX_KEYS)] * (MAX_MESSAGE_KEYS // MAX_KEYS)
        assert "too many" in complaint(PoolPicks(endpoints=["a"], picks=[first, *again]))

    def test_has_bounded_bytes_picks_pools_and_endpoints(self) -> None:
        with pytest.raises(MalformedError, match="bytes"):
            read(bytes(MAX_MESSAGE_BYTES + 1))
        one = Pick(keys=[1], ends=[1])
        assert "picks" in complaint(PoolPicks(endpoints=["a"], picks=[one] * (MAX_PICKS + 1)))
        assert "picks" in complaint(*[PoolPicks()] * (MAX_PICKS + 1))
        assert "twice" in complaint(PoolPicks(pool="a"), PoolPicks(pool="a"))
        assert "endpoints" in complaint(PoolPicks(endpoints=["a", "b"], picks=[one]))


def test_the_scheme_of_block_keys_is_in_every_message_and_the_same_in_every_process() -> None:
    (message,) = written([pick("a")])
    assert read(message.data).scheme == SCHEME
    program = "from extproc.sharing.batches import SCHEME; print(SCHEME)"
    for seed in ("1", "2"):
        said = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True
        )
        assert int(said.stdout) == SCHEME


def test_the_generated_modules_are_those_of_the_messages(tmp_path: Path) -> None:
    where = "extproc/sharing"
    done = protoc.main(
        ["protoc", f"-I{ROOT}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", f"{where}/picks.proto"]
    )
    assert done == 0
    for name in ("picks_pb2.py", "picks_pb2.pyi"):
        assert (tmp_path / where / name).read_text() == (ROOT / where / name).read_text(), "run `make proto`"

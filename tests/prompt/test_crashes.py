"""What the fuzzer once broke, and what it starts from, holds what must hold for any bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.target import DATA, check, seeds

INPUTS = {
    **{f"seed {number}": data for number, data in enumerate(seeds())},
    **{file.name: file.read_bytes() for file in sorted(DATA.glob("crashes/*-*"))},
}


@pytest.mark.parametrize("data", INPUTS.values(), ids=INPUTS.keys())
def test_an_input_that_is_known_breaks_nothing(data: bytes) -> None:
    check(data)


@given(st.binary())
def test_no_bytes_break_anything(data: bytes) -> None:
    check(data)


@given(st.sampled_from(list(INPUTS.values())), st.data())
def test_no_real_body_that_is_damaged_breaks_anything(seed: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(seed)))
    check(seed[:at] + draw.draw(st.binary(max_size=8)) + seed[at + draw.draw(st.integers(0, 8)) :])

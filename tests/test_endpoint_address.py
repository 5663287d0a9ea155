"""Endpoint addresses: one spelling each, and refusals that say what to write."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.address import named_in, parse_endpoint, parse_endpoints


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("10.0.0.7:8000", "10.0.0.7:8000"),
        ("10.0.0.7:08000", "10.0.0.7:8000"),
        ("[2001:DB8:0:0::7]:8000", "[2001:db8::7]:8000"),
        ("[::1]:1", "[::1]:1"),
        # As inet_ntop and so Envoy writes it.
        ("[::ffff:a00:7]:8000", "[::ffff:10.0.0.7]:8000"),
    ],
)
def test_an_address_has_one_spelling(written: str, canonical: str) -> None:
    assert parse_endpoint(written) == canonical
    assert parse_endpoint(canonical) == canonical


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("10.0.0.7", "must be ip:port"),
        ("", "must be ip:port"),
        (":8000", "must be an IP address and port"),
        ("10.0.0.7:", "port ''"),
        ("10.0.0.7:0", "port '0'"),
        ("10.0.0.7:65536", "port '65536'"),
        ("10.0.0.7:-1", "port '-1'"),
        ("10.0.0.7:80a", "port '80a'"),
        ("10.0.0.7:٨٠", "port '٨٠'"),
        ("10.0.0.07:80", "'10.0.0.07' is not an IPv4 address"),
        ("10.0.0:80", "'10.0.0' is not an IPv4 address"),
        ("engine-0.llama:8000", "must be an IP address"),
        ("[10.0.0.7]:80", "is not an IPv6 address"),
        (" 10.0.0.7:80", "must be an IP address"),
        ("2001:db8::7:8000", "in brackets"),
        ("[fe80::1%eth0]:80", "zone"),
        ("0.0.0.0:80", "can be connected to"),
        ("[::]:80", "can be connected to"),
        ("224.0.0.1:80", "can be connected to"),
    ],
)
def test_what_is_not_an_address_is_refused_by_its_value_and_fault(written: str, fault: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_endpoints([written])
    assert repr(written) in str(refused.value)
    assert fault in str(refused.value)


@pytest.mark.parametrize("value", [8000, None, 1.5, ["10.0.0.7:80"], {"ip": "10.0.0.7"}, b"10.0.0.7:80"])
def test_what_is_not_text_is_refused_by_its_value(value: object) -> None:
    with pytest.raises(ValueError) as refused:
        parse_endpoints([value])
    assert repr(value) in str(refused.value)


def test_an_address_written_twice_counts_once_and_the_order_stays() -> None:
    written = ["10.0.0.9:80", "[::0001]:80", "10.0.0.9:080", "10.0.0.1:80", "[::1]:80"]
    assert parse_endpoints(written) == ("10.0.0.9:80", "[::1]:80", "10.0.0.1:80")


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6), st.integers(1, 65535))
def test_the_canonical_spelling_is_the_same_address(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    written = f"[{ip.exploded}]:{port}" if ip.version == 6 else f"{ip}:{port}"
    if ip.is_multicast or ip.is_unspecified:
        return
    host, _, canonical_port = parse_endpoint(written).rpartition(":")
    assert ipaddress.ip_address(host.strip("[]")) == ip
    assert int(canonical_port) == port


POOL = ("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "[fd00::1]:8000", "[::ffff:10.0.0.7]:8000")


@pytest.mark.parametrize(
    ("subset", "named"),
    [
        (("10.0.0.2:8000", "10.0.0.1:8001"), ("10.0.0.1:8001", "10.0.0.2:8000")),
        (("10.0.0.1",), ("10.0.0.1:8000", "10.0.0.1:8001")),
        (("fd00::1",), ("[fd00::1]:8000",)),
        (("[FD00:0::1]",), ("[fd00::1]:8000",)),
        (("[fd00:0::1]:08000",), ("[fd00::1]:8000",)),
        (("::ffff:a00:7",), ("[::ffff:10.0.0.7]:8000",)),
        ((), ()),
        (("10.0.0.1:80", "10.0.0.3", "10.0.0", "", "[", "]", "[]", ":", "engine-1", "fe80::1%eth0"), ()),
    ],
)
def test_a_subset_names_endpoints_by_address_and_port_or_by_address(
    subset: tuple[str, ...], named: tuple[str, ...]
) -> None:
    assert named_in(subset, POOL) == named


@given(st.lists(st.one_of(st.text(max_size=30), st.sampled_from(POOL)), max_size=6))
def test_whatever_a_subset_holds_it_names_endpoints_of_the_pool_in_their_order(texts: list[str]) -> None:
    named = named_in(tuple(texts), POOL)
    assert set(POOL) & set(texts) <= set(named)
    assert [one for one in POOL if one in named] == list(named)

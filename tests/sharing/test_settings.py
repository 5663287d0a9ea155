"""`sharing` in the configuration file."""

from __future__ import annotations

import pytest

from extproc.address import Address
from extproc.config import ConfigError, SharingConfig, needing_restart, parse

POOLS = 'pools: [{name: a, endpoints: {static: ["10.0.0.1:80"]}}]\n'
FILES = "cert: c, key: k"


def sharing(text: str, rest: str = "") -> SharingConfig:
    found = parse(f"sharing: {text}\n{rest}{POOLS}", "f.yaml").sharing
    assert found is not None
    return found


def complaint(text: str, rest: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        sharing(text, rest)
    (line,) = str(caught.value).splitlines()
    return line


def test_it_is_off_unless_it_is_there() -> None:
    assert parse(POOLS, "f.yaml").sharing is None


def test_peers_are_a_service_or_a_list() -> None:
    assert sharing("{listen: '0.0.0.0:9004', service: 'router-peers.llm.svc:9004'}").service == Address(
        "router-peers.llm.svc", 9004
    )
    assert sharing("{listen: '[::]:9004', peers: ['10.0.0.1:9004', '[fd00::1]:9005', 'b:9004']}").peers == (
        Address("10.0.0.1", 9004),
        Address("fd00::1", 9005),
        Address("b", 9004),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{service: 'a:9004'}", "sharing.listen: is required"),
        ("{listen: '0.0.0.0:9004'}", "exactly one of the keys service, peers"),
        ("{listen: '0.0.0.0:9004', service: 'a:9004', peers: ['a:9004']}", "exactly one of"),
        ("{listen: '0.0.0.0:9004', peers: []}", "one replica at least"),
        ("{listen: '0.0.0.0:9004', service: 'a:9005'}", "both must be the same"),
        ("{listen: 'unix:/run/x', peers: ['a:9004']}", "other replicas call over TCP"),
        ("{listen: '0.0.0.0:9004', peers: ['0.0.0.0:9004']}", "host and port that can be called"),
        ("{listen: '0.0.0.0:9004', peers: ['a:0']}", "host and port that can be called"),
        ("{listen: '0.0.0.0:9004', peers: ['a']}", "must be host:port"),
        ("{listen: '0.0.0.0:9004', peer: ['a:1']}", "did you mean peers"),
        ("{listen: '127.0.0.1:9002', peers: ['a:1']}", "collides with listen 127.0.0.1:9002"),
        ("{listen: '0.0.0.0:9004', plaintext: 1, peers: ['a:1']}", "plaintext: is 1; must be true or false"),
        ("true", "must be a mapping with listen, plaintext, service, peers"),
    ],
)
def test_what_is_wrong_is_said_with_the_remedy(text: str, said: str) -> None:
    assert said in complaint(text)


def test_with_tls_replicas_must_be_able_to_know_each_other() -> None:
    both = "{listen: '0.0.0.0:9004', service: 'a:9004'}"
    assert "tls.clientCa: is required with sharing" in complaint(both, f"tls: {{{FILES}}}\n")
    for own in ("{selfSigned: true}", "{selfSigned: true, clientCa: ca}"):
        said = complaint(both, f"tls: {own}\n")
        assert "tls.selfSigned: excludes sharing" in said
        assert "give cert, key and clientCa" in said
    assert not sharing(both, f"tls: {{{FILES}, clientCa: ca}}\n").plaintext


@pytest.mark.parametrize("tls", [f"{{{FILES}}}", "{selfSigned: true}", f"{{{FILES}, clientCa: ca}}", "null"])
def test_in_plaintext_by_choice_any_tls_of_the_gateway_s_port_will_do(tls: str) -> None:
    chosen = "{listen: '0.0.0.0:9004', plaintext: true, service: 'a:9004'}"
    assert sharing(chosen, f"tls: {tls}\n").plaintext


@pytest.mark.parametrize("tls", [f"{{{FILES}}}", "{selfSigned: true}"])
def test_that_choice_is_the_remedy_which_a_refusal_names_beside_certificates(tls: str) -> None:
    said = complaint("{listen: '0.0.0.0:9004', service: 'a:9004'}", f"tls: {tls}\n")
    assert (
        "or set sharing.plaintext: true, where a NetworkPolicy admits replicas alone to 0.0.0.0:9004" in said
    )


def test_a_change_of_it_waits_for_a_restart() -> None:
    old = parse(POOLS, "f")
    new = parse("sharing: {listen: '0.0.0.0:9004', service: 'a:9004'}\n" + POOLS, "f")
    assert needing_restart(old, new) == ["sharing"]

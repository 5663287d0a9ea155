"""An address is bound whole, or not at all."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from extproc.address import Address, parse_address
from extproc.listening import sockets_of


def dual(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """A machine on which `localhost` is these addresses."""
    real = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, **options: int) -> list[object]:
        found = hosts if host == "localhost" else (host,)
        return [info for one in found for info in real(one, port, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of 127.0.0.1 where somebody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
        yield port


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.mark.parametrize("text", ["127.0.0.1:0", "0.0.0.0:0", "unix:/run/x.sock"])
def test_an_address_is_itself(text: str) -> None:
    assert [str(one) for one in sockets_of(parse_address(text))] == [text]


def test_a_name_is_all_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    dual(monkeypatch, "127.0.0.2", "127.0.0.1")
    port = free_port()
    assert sockets_of(Address("localhost", port)) == (Address("127.0.0.2", port), Address("127.0.0.1", port))


def test_a_name_of_which_one_address_is_in_use_is_refused(
    monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    dual(monkeypatch, "127.0.0.2", "127.0.0.1")
    with pytest.raises(OSError, match=rf"localhost:{taken} \(127.0.0.1:{taken}\): another process listens"):
        sockets_of(Address("localhost", taken))


def test_an_address_of_a_name_that_this_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    dual(monkeypatch, "192.0.2.1", "127.0.0.1")
    port = free_port()
    assert sockets_of(Address("localhost", port)) == (Address("127.0.0.1", port),)
    dual(monkeypatch, "192.0.2.1")
    with pytest.raises(OSError, match="not an address of this machine"):
        sockets_of(Address("localhost", port))


def test_a_name_that_does_not_resolve_is_named() -> None:
    with pytest.raises(OSError, match=r"no-such-host.invalid"):
        sockets_of(Address("no-such-host.invalid", 9002))

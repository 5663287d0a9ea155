"""Addresses as they are written in files: where this process listens, and the endpoints it picks from."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple

MOST_REMEMBERED = 32_768
"""Endpoints that need not be read again: some 10 MB. To read one takes 10 us, and discovery gives all those
of a pool whenever one changes."""


class Address(NamedTuple):
    """Where to listen: a TCP host and port, or a Unix socket.

    `host` has no brackets; `port` 0 lets the kernel choose. For a Unix socket `path` is absolute, `host`
    empty and `port` 0. `str()` gives the form that files and gRPC use: `127.0.0.1:9002`, `[::1]:9002`,
    `unix:/run/x.sock`.
    """

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_unix(self) -> bool:
        """Whether this is a Unix socket."""
        return bool(self.path)

    def overlaps(self, other: Address) -> bool:
        """Whether both cannot be bound at once. Port 0 never collides, a wildcard host with every host."""
        if self.is_unix or other.is_unix:
            return self.path == other.path
        wildcard = {"0.0.0.0", "::"} & {self.host, other.host}
        return self.port == other.port != 0 and (self.host == other.host or bool(wildcard))


_TCP_FORM = re.compile(r"\[(?P<v6>[^\]]*)\]:(?P<v6port>.*)|(?P<host>[^:\[\]]*):(?P<port>[^:]*)")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*\.?")
_UNIX_PATH_BYTES = 107  # sizeof(sockaddr_un.sun_path) less the closing NUL, unix(7)


def parse_address(text: str) -> Address:
    """Read `host:port`, `[v6]:port` or `unix:/path`.

    Raises ValueError saying what is wrong and what to write.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise ValueError("a Unix socket needs an absolute path: unix:/path")
        if len(path.encode()) > _UNIX_PATH_BYTES:
            raise ValueError(f"a Unix socket's path may have {_UNIX_PATH_BYTES} bytes at most")
        return Address("", 0, path)
    form = _TCP_FORM.fullmatch(text)
    if form is None:
        if text.count(":") > 1:
            raise ValueError('an IPv6 address goes in brackets: "[::1]:9002"')
        raise ValueError("must be host:port, [v6]:port or unix:/path")
    if form["v6"] is not None:
        return Address(_ip(form["v6"], 6), _port(form["v6port"]))
    host = form["host"]
    if not host:
        raise ValueError(
            f"names no host: write 0.0.0.0{text} for every IPv4 address, [::]{text} for every address"
        )
    if re.fullmatch(r"[0-9.]+", host):
        return Address(_ip(host, 4), _port(form["port"]))
    if not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{host!r} is neither an IP address nor a host name")
    return Address(host, _port(form["port"]))


@lru_cache(maxsize=MOST_REMEMBERED)
def parse_endpoint(text: str) -> str:
    """Read an endpoint, `ip:port` or `[v6]:port`, and return it as Envoy writes it.

    Envoy compares a pin with the addresses of its hosts as text, so only the canonical form matches
    (`override_host` in envoy/extensions/load_balancing_policies). Raises ValueError saying what is wrong.
    """
    form = _TCP_FORM.fullmatch(text)
    if form is None:
        if text.count(":") > 1:
            raise ValueError('an IPv6 address goes in brackets: "[fd00::1]:8000"')
        raise ValueError("must be ip:port or [v6]:port")
    if form["v6"] is not None:
        host, port = _ip(form["v6"], 6), _port(form["v6port"], low=1)
    elif re.fullmatch(r"[0-9.]+", form["host"]):
        host, port = _ip(form["host"], 4), _port(form["port"], low=1)
    else:
        raise ValueError(
            "must be an IP address and port: Envoy's override_host matches a host by address, never by name"
        )
    address = ipaddress.ip_address(host)
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"{host} is no address that can be connected to")
    return f"[{host}]:{port}" if address.version == 6 else f"{host}:{port}"


def parse_endpoints(values: Iterable[object]) -> tuple[str, ...]:
    """Read endpoints in their order, each once; see `parse_endpoint`.

    Raises ValueError that names the first value that is none and says what is wrong.
    """
    return tuple(dict.fromkeys(_endpoint(value) for value in values))


def subset_of(texts: Iterable[str]) -> tuple[str, ...]:
    """What a gateway names, one by one: each text may hold several, separated by commas."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


@lru_cache(maxsize=1024)
def named_in(subset: tuple[str, ...], endpoints: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `endpoints` (canonical) that `subset` names by `ip:port`, or by `ip` for every port of it.

    What names nothing that is an endpoint counts as not said. Cached: a gateway says the same few over and
    over.
    """
    exact, hosts = set(), set()
    for text in subset:
        try:
            exact.add(parse_endpoint(text))
        except ValueError:
            hosts.add(_host(text))
    return tuple(one for one in endpoints if one in exact or one.rpartition(":")[0] in hosts)


def _host(text: str) -> str:
    """An IP address alone as it stands in a canonical endpoint; empty if it is none."""
    bare = text.removeprefix("[").removesuffix("]")
    try:
        return f"[{_ip(bare, 6)}]" if ":" in bare else _ip(bare, 4)
    except ValueError:
        return ""


def _endpoint(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"endpoint {value!r}: must be text: ip:port or [v6]:port")
    try:
        return parse_endpoint(value)
    except ValueError as error:
        raise ValueError(f"endpoint {value!r}: {error}") from None


def _ip(text: str, version: Literal[4, 6]) -> str:
    try:
        if version == 4:
            return str(ipaddress.IPv4Address(text))
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an IPv{version} address") from None
    if address.scope_id is not None:
        raise ValueError("an IPv6 zone (%...) is not accepted")
    # inet_ntop and not str(): Envoy writes IPv4-mapped addresses with dots, ipaddress does not.
    return socket.inet_ntop(socket.AF_INET6, address.packed)


def _port(text: str, low: int = 0) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not low <= int(text) <= 65535:
        raise ValueError(f"port {text!r} must be a number from {low} to 65535")
    return int(text)

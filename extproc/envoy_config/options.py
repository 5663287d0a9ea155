"""What can be asked of the Envoy configuration, and the addresses in it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal

Exchange = Literal["two-message", "one-message"]

MIB = 1024 * 1024
BODY_LIMIT_MIN = 16 * 1024
# Envoy's limits are soft: a message to the router may exceed them by what Envoy reads ahead.
MESSAGE_SLACK = MIB


class OptionsError(ValueError):
    """An option no Envoy configuration can be made from; the text says which one, why, and what would do."""


@dataclass(frozen=True, slots=True)
class Ip:
    """A TCP address. `host` is an IP literal without brackets, `port` 1-65535."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """True if only this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback


@dataclass(frozen=True, slots=True)
class Unix:
    """A Unix domain socket by its path."""

    path: str

    @property
    def loopback(self) -> bool:
        """Always true: only this machine can reach it."""
        return True


@dataclass(frozen=True, slots=True)
class Name:
    """A DNS name and port, resolved by Envoy."""

    host: str
    port: int


def parse_ip(text: str, what: str) -> Ip:
    """Read `IP:PORT` (IPv6 as `[::1]:8000`).

    :param what: the option's name, for the error.
    :raises OptionsError: not an IP literal with a port between 1 and 65535.
    """
    host, port = _split(text, what)
    try:
        return Ip(str(ipaddress.ip_address(host)), port)
    except ValueError:
        raise OptionsError(
            f"{what} {text!r}: {host!r} is not an IP address; Envoy knows endpoints by IP:PORT, "
            "so resolve the name first"
        ) from None


def parse_address(text: str, what: str) -> Ip | Unix:
    """Read `IP:PORT` or `unix:/path`.

    :raises OptionsError: neither of the two.
    """
    if text.startswith("unix:"):
        return _unix(text, what)
    return parse_ip(text, what)


def parse_router(text: str) -> Ip | Unix | Name:
    """Read a router's address: `IP:PORT`, `NAME:PORT` or `unix:/path`.

    A wildcard, as in a listen address, means loopback.

    :raises OptionsError: none of these.
    """
    if text.startswith("unix:"):
        return _unix(text, "router")
    host, port = _split(text, "router")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return Name(host, port)
    if ip.is_unspecified:
        return Ip("127.0.0.1" if ip.version == 4 else "::1", port)
    return Ip(str(ip), port)


def _unix(text: str, what: str) -> Unix:
    path = text.removeprefix("unix:").removeprefix("//")
    if not path.startswith("/"):
        raise OptionsError(f"{what} {text!r}: a Unix socket is written unix:/path, with the path absolute")
    # sun_path in unix(7): 108 bytes with the closing zero.
    if len(path.encode()) > 107:
        raise OptionsError(f"{what} {text!r}: the path of a Unix socket may have at most 107 bytes")
    return Unix(path)


def _split(text: str, what: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise OptionsError(f"{what} {text!r}: write IP:PORT, for example 127.0.0.1:8000 or [::1]:8000")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if ":" in host:
        raise OptionsError(f"{what} {text!r}: write an IPv6 address in brackets, for example [::1]:8000")
    return host, int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one Envoy should do for one pool.

    :ivar endpoints: the engines, each `IP:PORT`; at least one.
    :ivar routers: the router's addresses, each `IP:PORT`, `NAME:PORT` or `unix:/path`; several share the
        requests.
    :ivar listen: where clients connect, `IP:PORT`.
    :ivar plain_listen: a second listener with the same route and engines but without the router in the way,
        for measuring what the router adds; None for none.
    :ivar exchange: `two-message`: Envoy sends the headers, then the body. `one-message`: only the body is
        sent, where Envoy knows beforehand that it is within `body_limit` (content-length); all else goes in
        two messages.
    :ivar body_limit: bytes. Up to it a body is keyed whole and can be retried on another engine; a longer one
        is keyed by its first part, streamed, and not retried.
    :ivar max_message_bytes: the router's `maxMessageBytes`. A body of unknown length is buffered up to 1 MiB
        less, and answered 413 beyond.
    :ivar fail_closed: refuse requests the router cannot answer for, instead of sending them to the engine
        with the fewest requests.
    :ivar message_timeout: seconds the router has for each message.
    :ivar admin: Envoy's admin address, `IP:PORT` or `unix:/path`; None for none. Beyond loopback only /ready
        and /stats are served.
    :ivar access_log: path of a JSON access log, for example /dev/stdout; None for none.
    :ivar route_name: what the router sees as `xds.route_name`, which selects the pool by `match.route`.
    :ivar pool: sent to the router as gRPC metadata `x-warmroute-pool`, which selects the pool by
        `match.metadata`; None to send none.
    :raises OptionsError: an option is out of its range.
    """

    endpoints: tuple[str, ...]
    routers: tuple[str, ...] = ("127.0.0.1:9002",)
    listen: str = "127.0.0.1:8080"
    plain_listen: str | None = None
    exchange: Exchange = "two-message"
    body_limit: int = MIB
    max_message_bytes: int = 16 * MIB
    fail_closed: bool = False
    message_timeout: float = 0.5
    admin: str | None = "127.0.0.1:9901"
    access_log: str | None = None
    route_name: str = "llm"
    pool: str | None = None

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise OptionsError("no endpoints: name at least one engine as IP:PORT")
        seen: set[Ip] = set()
        for text in self.endpoints:
            ip = parse_ip(text, "endpoint")
            if ip in seen:
                raise OptionsError(f"endpoint {text!r} is named twice")
            seen.add(ip)
        if not self.routers:
            raise OptionsError("no router: name at least one address of `extproc serve`")
        for text in self.routers:
            parse_router(text)
        parse_ip(self.listen, "listen")
        if self.plain_listen is not None:
            parse_ip(self.plain_listen, "plain listen")
        if self.admin is not None:
            parse_address(self.admin, "admin")
        if self.exchange not in ("two-message", "one-message"):
            raise OptionsError(f"exchange {self.exchange!r}: either two-message or one-message")
        if self.body_limit < BODY_LIMIT_MIN:
            raise OptionsError(f"body limit {self.body_limit}: at least {BODY_LIMIT_MIN} bytes")
        if self.body_limit > self.unsized_limit:
            raise OptionsError(
                f"body limit {self.body_limit}: at most {MIB} bytes less than the router's maxMessageBytes "
                f"({self.max_message_bytes}); raise that first"
            )
        if not 0.001 <= self.message_timeout <= 3600:
            raise OptionsError(f"message timeout {self.message_timeout}: between 0.001 and 3600 seconds")
        if not self.route_name:
            raise OptionsError("the route name is empty")

    @property
    def unsized_limit(self) -> int:
        """Bytes up to which a body of unknown length is buffered."""
        return self.max_message_bytes - MESSAGE_SLACK

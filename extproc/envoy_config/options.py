"""What can be asked of the Envoy configuration."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from extproc.address import Address, parse_address, parse_endpoint

T = TypeVar("T")

Exchange = Literal["two-message", "one-message"]

MIB = 1024 * 1024
BODY_LIMIT_MIN = 16 * 1024
# The default of HTTP/2 (RFC 9113, section 6.9.2), and as much as a prompt of usual length needs at once.
READ_AHEAD_MIN = 64 * 1024
READ_AHEAD_MAX = 256 * 1024
# Envoy's limits are soft: a message to the router may exceed them by what Envoy reads ahead.
MESSAGE_SLACK = MIB


class OptionsError(ValueError):
    """An option no Envoy configuration can be made from; the text says which one, why, and what would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterTls:
    """How Envoy speaks TLS with the router. Paths are those of files on Envoy's machine.

    :ivar trusted_ca: PEM file with what Envoy trusts: an authority, or the router's own certificate; None to
        trust anybody who answers, as the router's self-signed certificate needs.
    :ivar names: DNS names and IP addresses, one of which the router's certificate must be valid for; empty
        for any.
    :ivar cert: PEM file with the certificate that Envoy shows, and `key`: its private key; None for none.
    :raises OptionsError: one of `cert` and `key` is missing.
    """

    trusted_ca: str | None = None
    names: tuple[str, ...] = ()
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise OptionsError(
                "Envoy's own certificate needs its key, and the key its certificate: give both"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one Envoy should do for one pool.

    :ivar endpoints: the engines, each `IP:PORT`; at least one, unless `endpoints_dns` names them.
    :ivar endpoints_dns: instead of `endpoints`: `NAME:PORT`, a name that stands for the addresses of all
        engines, such as that of a headless Service. Envoy looks it up each second.
    :ivar routers: the router's addresses, each `IP:PORT`, `NAME:PORT` or `unix:/path`; several share the
        requests.
    :ivar tls: how to speak TLS with the router; None for plaintext.
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

    endpoints: tuple[str, ...] = ()
    endpoints_dns: str | None = None
    routers: tuple[str, ...] = ("127.0.0.1:9002",)
    tls: RouterTls | None = None
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
        if self.endpoints_dns is not None:
            if self.endpoints:
                raise OptionsError("endpoints and a DNS name of them exclude each other: keep one")
            _named("endpoints DNS", self.endpoints_dns)
        elif not self.endpoints:
            raise OptionsError("no endpoints: name at least one engine as IP:PORT")
        canonical = [_read("endpoint", text, parse_endpoint) for text in self.endpoints]
        for at, endpoint in enumerate(canonical):
            if endpoint in canonical[:at]:
                raise OptionsError(f"endpoint {self.endpoints[at]!r} is named twice")
        if not self.routers:
            raise OptionsError("no router: name at least one address of `extproc serve`")
        for text in self.routers:
            _connectable("router", text)
        _ip("listen", self.listen)
        if self.plain_listen is not None:
            _ip("plain listen", self.plain_listen)
        if self.admin is not None and not _read("admin", self.admin, parse_address).is_unix:
            _ip("admin", self.admin)
        if self.exchange not in ("two-message", "one-message"):
            raise OptionsError(f"exchange {self.exchange!r}: either two-message or one-message")
        if self.body_limit < BODY_LIMIT_MIN:
            raise OptionsError(f"body limit {self.body_limit}: at least {BODY_LIMIT_MIN} bytes")
        if self.body_limit > self.unsized_limit:
            raise OptionsError(
                f"body limit {self.body_limit}: at most {MESSAGE_SLACK} bytes less than the router's "
                f"maxMessageBytes ({self.max_message_bytes}); raise that first"
            )
        if not 0.001 <= self.message_timeout <= 3600:
            raise OptionsError(f"message timeout {self.message_timeout}: between 0.001 and 3600 seconds")
        if not self.route_name:
            raise OptionsError("the route name is empty")

    @property
    def read_ahead(self) -> int:
        """Bytes that Envoy may read beyond a limit: its connection buffer and its HTTP/2 stream window."""
        return min(max(self.body_limit, READ_AHEAD_MIN), READ_AHEAD_MAX)

    @property
    def whole_limit(self) -> int:
        """Bytes up to which a body of known length is sent to the router whole.

        So far beyond `body_limit` that a longer body cannot end in the read that passes `body_limit`.
        """
        return self.body_limit + 3 * self.read_ahead

    @property
    def unsized_limit(self) -> int:
        """Bytes up to which a body of unknown length is buffered."""
        return self.max_message_bytes - MESSAGE_SLACK


def _read(what: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise OptionsError(f"{what} {text!r}: {error}") from None


def _ip(what: str, text: str) -> None:
    address = _connectable(what, text)
    if address.is_unix or not is_ip(address.host):
        raise OptionsError(f"{what} {text!r}: must be IP:PORT, for example 127.0.0.1:8080 or [::]:8080")


def _named(what: str, text: str) -> None:
    address = _connectable(what, text)
    if address.is_unix or is_ip(address.host):
        raise OptionsError(f"{what} {text!r}: must be NAME:PORT, for example llm-pods.llm.svc:8000")


def _connectable(what: str, text: str) -> Address:
    address = _read(what, text, parse_address)
    if not address.is_unix and address.port == 0:
        raise OptionsError(f"{what} {text!r}: name a port from 1 to 65535")
    return address


def is_ip(host: str) -> bool:
    """Whether `host` is an IP literal, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

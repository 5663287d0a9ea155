"""One spelling per endpoint address: `10.0.0.7:8000`, `[2001:db8::7]:8000`.

It is the spelling that Envoy prints (`inet_ntop`): Envoy finds a pin by equal text, and an address that Envoy
reports back is found the same way.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable


def normalise(value: object) -> str:
    """The canonical spelling of `ip:port` or `[ipv6]:port`.

    Raises ValueError that names the value and what is wrong: no port, a port outside 1-65535, a host name
    (Envoy's `override_host` takes IP addresses only), an IPv6 address without brackets or with a zone, or an
    address that nothing can be sent to.
    """
    if not isinstance(value, str):
        raise ValueError(f"endpoint {value!r}: expected text like 10.0.0.7:8000")
    host, colon, port = value.rpartition(":")
    if not colon or not host:
        raise ValueError(f"endpoint {value!r}: expected ip:port, like 10.0.0.7:8000")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise ValueError(f"endpoint {value!r}: port {port!r} is not a number from 1 to 65535")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise ValueError(f"endpoint {value!r}: write an IPv6 address in brackets, like [2001:db8::7]:8000")
    try:
        ip = ipaddress.IPv6Address(host[1:-1]) if bracketed else ipaddress.IPv4Address(host)
    except ValueError:
        raise ValueError(f"endpoint {value!r}: {host!r} is not an IP address") from None
    if getattr(ip, "scope_id", None) is not None:
        raise ValueError(f"endpoint {value!r}: an IPv6 zone (%...) is not taken")
    if ip.is_unspecified or ip.is_multicast:
        raise ValueError(f"endpoint {value!r}: nothing can be sent to {host}")
    # inet_ntop and not str(): it writes IPv4-mapped addresses with dots, as Envoy does.
    text = f"[{socket.inet_ntop(socket.AF_INET6, ip.packed)}]" if bracketed else str(ip)
    return f"{text}:{int(port)}"


def normalise_all(values: Iterable[object]) -> tuple[str, ...]:
    """The canonical spellings of `values` in their order, each once. Raises as `normalise` does."""
    return tuple(dict.fromkeys(normalise(value) for value in values))

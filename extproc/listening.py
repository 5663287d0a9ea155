"""Which sockets an address stands for, and whether they can be had.

A host name may stand for several addresses: `localhost` is 127.0.0.1 and ::1. Libraries bind the first, or
those that they can get, and say nothing of the others; a client of the address that is missing is refused.
"""

from __future__ import annotations

import errno
import socket
from contextlib import closing

from extproc.address import Address

_REASONS = {
    errno.EADDRINUSE: "another process listens there",
    errno.EACCES: "not allowed: ports below 1024 need a privilege",
    errno.EADDRNOTAVAIL: "not an address of this machine",
    errno.EAFNOSUPPORT: "this machine has no such addresses",
    errno.EMFILE: "this process has no file descriptor left: raise its limit (ulimit -n)",
}
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def sockets_of(address: Address) -> tuple[Address, ...]:
    """The addresses to bind, IP literals or a Unix socket, at least one.

    A literal is itself. A name is every address that it resolves to and this machine has; with port 0 the
    first of them, since the kernel chooses one port for each. Raises OSError whose text names the address
    and says what is wrong if one of them is not free.
    """
    if address.is_unix:
        return (address,)
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise OSError(f"{address}: the name {address.host!r} is not known: {error.strerror}") from None
    free: dict[Address, None] = {}
    absent: OSError | None = None
    for family, kind, number, _, where in found:
        one = Address(str(where[0]), address.port)
        try:
            with closing(socket.socket(family, kind, number)) as probe:
                # As servers do it: a port whose last connections are still closing is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(one.host != "::"))
                probe.bind(where)
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
            explained = OSError(error.errno, reason, str(one))
            if error.errno not in _ABSENT:
                raise _named(address, explained) from None
            absent = explained
        else:
            free[one] = None
    if absent is not None and not free:
        raise _named(address, absent)
    return tuple(free)[: 1 if address.port == 0 else None]


def _named(address: Address, error: OSError) -> OSError:
    where = str(address) if error.filename == str(address) else f"{address} ({error.filename})"
    return OSError(f"{where}: {error.strerror}")

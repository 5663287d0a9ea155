"""Peers by name: each name is looked up again and again, and stands for all its addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from threading import Thread

import structlog

from extproc.address import Address

LookUp = Callable[[Address], Awaitable[frozenset[str]]]
"""All `ip:port` of a name and port. Raises OSError."""

_NOTHING = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
"""The name server's word that there is no such name, or no address: so it is with a headless Service none of
whose pods is ready. Any other error says nothing of the name."""

_NO_ADDRESS = "no address"

_log = structlog.get_logger(__name__)


class Names:
    """The addresses of some names. `look_up` asks for those of one."""

    def __init__(self, names: Sequence[Address], look_up: LookUp) -> None:
        self._addresses: dict[Address, frozenset[str]] = {name: frozenset() for name in names}
        self._look_up = look_up
        self._complaints: dict[Address, str] = {}

    async def addresses(self) -> frozenset[str]:
        """What they are now. A name that cannot be looked up keeps the addresses that it had."""
        await asyncio.gather(*(self._refresh(name) for name in self._addresses))
        return frozenset().union(*self._addresses.values())

    async def _refresh(self, name: Address) -> None:
        try:
            self._addresses[name] = await self._look_up(name)
            if self._addresses[name]:
                self._complaints.pop(name, None)
            elif self._complaints.get(name) != _NO_ADDRESS:
                self._complaints[name] = _NO_ADDRESS
                _log.info("name of peers has no address now", name=str(name))
        except OSError as error:
            reason = error.strerror or str(error)
            if self._complaints.get(name) != reason:
                self._complaints[name] = reason
                _log.warning(
                    "name of peers cannot be looked up; its addresses stay", name=str(name), reason=reason
                )


async def look_up(name: Address) -> frozenset[str]:
    """All addresses that the system's resolver gives for a name, A and AAAA; of an IP address itself.

    Raises OSError if it cannot say. The thread that asks is one of its own: one that waits for a name server
    must not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[frozenset[str]] = loop.create_future()

    def settle(result: frozenset[str] | OSError) -> None:
        if found.done():
            return
        if isinstance(result, OSError):
            found.set_exception(result)
        else:
            found.set_result(result)

    def ask() -> None:
        result = _resolved(name)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result)

    Thread(target=ask, name=f"look-up of {name.host}", daemon=True).start()
    return await found


def _resolved(name: Address) -> frozenset[str] | OSError:
    try:
        answers = socket.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return frozenset() if error.errno in _NOTHING else error
    except (OSError, UnicodeError) as error:
        return error if isinstance(error, OSError) else OSError(str(error))
    return frozenset(
        str(Address(str(where[0]), name.port))
        for family, _, _, _, where in answers
        if family in (socket.AF_INET, socket.AF_INET6)
    )

"""What the router shows engines, and what it trusts them by: a bearer token and authorities, from files.

The files are watched, as Kubernetes renews a mounted token and may renew authorities. A file that cannot be
used changes nothing: what was read before stays.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import structlog

from extproc.watch import moments

REREAD_SECONDS = 10.0
"""A file is read again this often though nothing was seen; mounted tokens are renewed minutes ahead."""
MAX_TOKEN_BYTES = 16 * 1024
"""A larger token is refused: servers take 8 to 16 KB of headers."""
MAX_CA_BYTES = 4 * 1024 * 1024
"""A larger file of authorities is refused: the bundle of all public ones has some 200 KB."""

_TOKEN = re.compile(rb"[!-~]+")

_log = structlog.get_logger(__name__)


class Credentials:
    """Read them once with `load`, then let `follow` run."""

    def __init__(
        self, token_file: Path | None, ca_file: Path | None, *, verify: bool, on_change: Callable[[], None]
    ) -> None:
        """`verify` False trusts any certificate. `on_change` is called when a file has changed."""
        self._token_file = token_file
        self._ca_file = ca_file
        self._verify = verify
        self._on_change = on_change
        self._contents: dict[Path, bytes] = {}
        self._complaints: dict[Path, str] = {}
        self.authorization: str | None = None
        """The header of that name; None without a token."""
        self.trust: ssl.SSLContext | None = None
        """For TLS; None before `load`, and while the authorities cannot be read."""

    @property
    def token_problem(self) -> str:
        """Why there is no token, or an old one; empty where all is well."""
        return self._complaints.get(self._token_file, "") if self._token_file else ""

    @property
    def trust_problem(self) -> str:
        """The same of the authorities."""
        return self._complaints.get(self._ca_file, "") if self._ca_file else ""

    async def load(self, *, tls: bool) -> None:
        """Read both files; `tls`: something is to be asked over TLS."""
        if self._token_file is not None:
            await self._look(self._token_file)
        if tls and self._ca_file is not None:
            await self._look(self._ca_file)
        elif tls:
            self.trust = await asyncio.to_thread(self._context, None)

    async def follow(self) -> None:
        """Read the files again when they change, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for path in (self._token_file, self._ca_file):
                if path is not None:
                    tasks.create_task(self._watch(path))

    async def _watch(self, path: Path) -> None:
        async with aclosing(moments(path, REREAD_SECONDS)) as looks:
            async for _ in looks:
                if await self._look(path):
                    self._on_change()

    async def _look(self, path: Path) -> bool:
        """Read a file. Whether it was taken and is another than before."""
        try:
            content = await asyncio.to_thread(
                _content, path, MAX_TOKEN_BYTES if path == self._token_file else MAX_CA_BYTES
            )
            if content == self._contents.get(path):
                self._complaints.pop(path, None)
                return False
            if path == self._token_file:
                self.authorization = f"Bearer {_token(content)}"
            if path == self._ca_file:
                self.trust = await asyncio.to_thread(self._context, content)
        except (OSError, ValueError) as error:
            self._complain(path, (error.strerror if isinstance(error, OSError) else None) or str(error))
            return False
        self._contents[path] = content
        self._complaints.pop(path, None)
        return True

    def _complain(self, path: Path, complaint: str) -> None:
        if self._complaints.get(path) != complaint:
            self._complaints[path] = complaint
            key = "tokenFile" if path == self._token_file else "tls.ca"
            kept = path in self._contents
            _log.warning(
                "a file of engineMetrics not taken", key=key, path=str(path), error=complaint, kept=kept
            )

    def _context(self, authorities: bytes | None) -> ssl.SSLContext:
        """Raises ValueError for authorities that are none."""
        try:
            context = ssl.create_default_context(
                cadata=None if authorities is None else authorities.decode("ascii")
            )
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise ValueError("holds no PEM certificates") from error
        if not self._verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _content(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"is larger than {most} bytes")
    return content


def _token(content: bytes) -> str:
    token = content.strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError("is empty" if not token else "must hold one token of visible ASCII characters")
    return token.decode()

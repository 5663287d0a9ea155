"""TLS of the gRPC listener: certificates read from files, and read again when the files change.

What is served is held in memory as one checked triple (chain, key, authorities). Files that do not make one,
such as a key that is written and a certificate that is not yet, leave the triple before them in place, and
the log says why. gRPC asks for the triple at each handshake, so a new one serves the next connection while
streams on the connections before it go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import grpc
import structlog

from extproc.certificates import Material, TlsError, date, read, self_signed
from extproc.config import TlsConfig
from extproc.metrics import TlsMetrics
from extproc.watch import moments

REREAD_SECONDS = 5.0
"""The files are read this often though no change was reported."""

_log = structlog.get_logger(__name__)


class Certificates:
    """The certificates of one process, as they are now.

    `clock` gives seconds since the epoch. Raises `TlsError` if the files cannot be used; once made, files
    that cannot be used change nothing.
    """

    def __init__(
        self, config: TlsConfig, metrics: TlsMetrics, clock: Callable[[], float] = time.time
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._own = self_signed(clock()) if config.self_signed else None
        self._current = self._read()
        self._channel: tuple[Material, grpc.ChannelCredentials] | None = None
        self._complaint = ""
        """Why the files were not taken when they were last read; empty if they were."""
        self._wake = asyncio.Event()
        metrics.certificate(lambda: self._current.expires - clock())

    @property
    def current(self) -> Material:
        """What is served now. The same object for as long as nothing changed."""
        return self._current

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials of a listener, which follow the files; with `clientCa` each client must show a
        certificate.

        The caller keeps the object for as long as the listener lives: gRPC calls back into it.
        """
        given = self._current

        def newer() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            if self._current is given:
                return None
            given = self._current
            return _served(given)

        return grpc.dynamic_ssl_server_credentials(
            _served(given), newer, require_client_authentication=given.client_ca is not None
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials to call another replica, which has a certificate of the same kind as this one's.

        It is trusted if an authority of `clientCa` issued its certificate, or without `clientCa` if it shows
        this replica's own; and this one's is shown to it. Since replicas are called by address, the channel
        needs the option `grpc.ssl_target_name_override` with `peer_name`. The same object until the files
        change: a channel made with another one is to be replaced. Raises `TlsError` where the pair is
        self-signed, since no other replica has it.
        """
        if self._config.self_signed:
            raise TlsError(
                "tls.selfSigned is true, so replicas cannot tell each other from strangers; give tls.cert,"
                " tls.key and tls.clientCa, for example from one Kubernetes Secret for all replicas"
            )
        material = self._current
        if self._channel is None or self._channel[0] is not material:
            credentials = grpc.ssl_channel_credentials(
                root_certificates=material.client_ca or material.chain,
                private_key=material.key,
                certificate_chain=material.chain,
            )
            self._channel = (material, credentials)
        return self._channel[1]

    @property
    def peer_name(self) -> str:
        """The name for which another replica's certificate must be valid: the first of this one's own."""
        return self._current.names[0].replace("*", "replica") if self._current.names else ""

    async def follow(self) -> None:
        """Take the files over whenever they change, until cancelled."""
        paths = [self._config.cert, self._config.key, self._config.client_ca]
        # Signs come by directory, so one path of each is enough.
        watched = {path.parent: path for path in paths if path is not None}
        async with asyncio.TaskGroup() as tasks:
            for path in watched.values():
                tasks.create_task(self._see(path))
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self.look()

    async def look(self) -> None:
        """Read the files now, and serve them from the next handshake on if they changed and can be used."""
        try:
            found = await asyncio.to_thread(self._read)
        except TlsError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._metrics.refused()
                _log.error(
                    "certificate not taken; the one before it serves on",
                    reason=self._complaint,
                    expires=date(self._current.expires),
                )
            return
        self._complaint = ""
        if found != self._current:
            self._current = found
            self._metrics.reloaded()
            _log.info("certificate reloaded", names=found.names, expires=date(found.expires))

    async def _see(self, path: Path) -> None:
        async with aclosing(moments(path, REREAD_SECONDS)) as signs:
            async for _ in signs:
                self._wake.set()

    def _read(self) -> Material:
        return read(self._config, self._clock(), self._own)


def _served(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.client_ca)

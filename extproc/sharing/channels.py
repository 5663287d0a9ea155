"""Channels to other replicas: by TLS where replicas share by it, else in plaintext."""

from __future__ import annotations

from typing import NamedTuple

import grpc

from extproc import __version__
from extproc.sharing.batches import MAX_MESSAGE_BYTES
from extproc.sharing.picks_pb2 import DESCRIPTOR
from extproc.tls import Certificates

SERVICE: str = DESCRIPTOR.services_by_name["Picks"].full_name

_OPTIONS = (
    ("grpc.primary_user_agent", f"warmroute/{__version__}"),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Peers are named by address and lie in the same network: no proxy of the environment, and no DNS for
    # gRPC's own settings.
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    # A connection that is made anew is really a new one, and a call that fails is not sent twice.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.http2.bdp_probe", 0),
)


class Opened(NamedTuple):
    """An open channel. The caller closes it."""

    channel: grpc.aio.Channel
    tell: grpc.aio.UnaryUnaryMultiCallable
    known: grpc.aio.UnaryStreamMultiCallable
    credentials: grpc.ChannelCredentials | None
    """Those that it was opened with."""


class Channels:
    """Opens channels. With `certificates` both sides show one (see `Certificates.channel_credentials`)."""

    def __init__(self, certificates: Certificates | None) -> None:
        self._certificates = certificates

    def open(self, address: str) -> Opened:
        """A channel to `ip:port`. It connects at the first call."""
        target = f"ipv6:{address}" if address.startswith("[") else f"ipv4:{address}"
        credentials = self._credentials()
        if self._certificates is None:
            channel = grpc.aio.insecure_channel(target, _OPTIONS)
        else:
            name = ("grpc.ssl_target_name_override", self._certificates.peer_name)
            channel = grpc.aio.secure_channel(target, credentials, (*_OPTIONS, name))
        return Opened(
            channel,
            channel.unary_unary(f"/{SERVICE}/Tell"),
            channel.unary_stream(f"/{SERVICE}/Known"),
            credentials,
        )

    def outdated(self, opened: Opened) -> bool:
        """Whether the certificates have changed since this one was opened."""
        return self._credentials() is not opened.credentials

    def _credentials(self) -> grpc.ChannelCredentials | None:
        return None if self._certificates is None else self._certificates.channel_credentials()

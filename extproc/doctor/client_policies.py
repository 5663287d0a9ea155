"""ClientTrafficPolicies: what clients may say, and how much of a request the gateway holds for the router."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.config import Config
from extproc.doctor import acceptance
from extproc.doctor.attachments import Effective, attachments, listeners, of_listener
from extproc.doctor.backend_policies import PIN
from extproc.doctor.extension_policies import body_modes
from extproc.doctor.findings import Finding, error, warning
from extproc.doctor.inventory import (
    Inventory,
    Json,
    Reference,
    at,
    entries,
    quantity,
    reference_of,
    titled,
)

DEFAULT_BUFFER = 32_768
"""Bytes that Envoy Gateway has Envoy hold of a request (ClientTrafficPolicy, connection.bufferLimit)."""

DEFAULT_WINDOW = 65_536
"""Bytes of an HTTP/2 stream's window with Envoy Gateway (ClientTrafficPolicy, http2.initialStreamWindowSize).
Envoy holds no more than that of a request which comes by HTTP/2."""

LEAST_BUFFER = 1024 * 1024
"""Bytes that hold most prompts: some 250,000 tokens."""

BESIDE_BODY = 1024 * 1024
"""Bytes of a message to the router that are not the body, and what Envoy reads ahead, generously."""


def check(inventory: Inventory, service: Reference, config: Config | None) -> Iterator[Finding]:
    """What is wrong at the Gateways whose routes ask this Service. `config` is the router's, if known."""
    for gateway, listener in dict.fromkeys(_listeners(inventory, service)):
        found = inventory.get("Gateway", gateway)
        if found is None:
            continue
        effective = of_listener(inventory, found, listener)
        where = titled(effective.policies[0]) if effective.policies else titled(found)
        yield from acceptance.check(effective.policies)
        yield from _stripped(effective, where)
        yield from _buffer(effective, where, body_modes(inventory, service, found), config)


def _listeners(inventory: Inventory, service: Reference) -> Iterator[tuple[Reference, str]]:
    for one in attachments(inventory, service):
        for gateway in one.gateways:
            for name in listeners(gateway, one.route):
                yield reference_of(gateway), name


def _stripped(effective: Effective, where: str) -> Iterator[Finding]:
    early = at(effective.spec, "headers", "earlyRequestHeaders")
    removed = {str(name).lower() for name in entries(early, "remove")}
    if PIN in removed or any(_matches(one) for one in entries(early, "removeOnMatch")):
        return
    yield error(
        "pin-not-stripped",
        where,
        f"a client that sends {PIN} chooses its engine itself while the router is away",
        f"set headers.earlyRequestHeaders.remove: [{PIN}] in a ClientTrafficPolicy of the Gateway",
    )


def _matches(matcher: Json) -> bool:
    value = str(at(matcher, "value")).lower()
    match at(matcher, "type"):
        case None | "Exact":
            return value == PIN
        case "Prefix":
            return PIN.startswith(value)
        case "Suffix":
            return PIN.endswith(value)
        case _:  # a regular expression: taken on trust where it has the name in it
            return PIN in value


def _buffer(effective: Effective, where: str, modes: set[str], config: Config | None) -> Iterator[Finding]:
    buffer = quantity(at(effective.spec, "connection", "bufferLimit")) or DEFAULT_BUFFER
    window = quantity(at(effective.spec, "http2", "initialStreamWindowSize")) or DEFAULT_WINDOW
    yield from _held(where, modes, buffer, "", "connection.bufferLimit")
    if window < buffer:
        yield from _held(where, modes, window, " by HTTP/2", "http2.initialStreamWindowSize")
    if config is None or not {"Buffered", "BufferedPartial"} & modes:
        return
    # Envoy compares after it has read, which may fill the buffer once more.
    needed = 2 * max(buffer, window) + BESIDE_BODY
    if needed > config.max_message_bytes:
        yield warning(
            "message-limit",
            where,
            f"bodies may come in messages of up to {needed} bytes, of which the router takes"
            f" {config.max_message_bytes}; such requests pass it by",
            f"set maxMessageBytes: {needed} in the router's configuration, or lower connection.bufferLimit"
            " and http2.initialStreamWindowSize",
        )


def _held(where: str, modes: set[str], limit: int, way: str, key: str) -> Iterator[Finding]:
    """Whether enough is held of a request that comes this way; `key` is where the limit is set."""
    if limit >= LEAST_BUFFER:
        return
    remedy = f"set {key}: 8Mi in a ClientTrafficPolicy of the Gateway"
    if "Buffered" in modes:
        what = f"bodies of more than {limit} bytes{way} are refused with 413 (Buffered)"
        yield error("buffer-small", where, what, remedy)
    elif "BufferedPartial" in modes:
        what = f"the router sees some {limit} bytes of a body{way}, and what is longer is not tried again"
        yield warning("buffer-small", where, what, remedy)

"""Endpoints written in the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from extproc.pool.address import normalise_all

OnChange = Callable[[tuple[str, ...]], None]


async def watch(addresses: Iterable[str], on_change: OnChange) -> None:
    """Call `on_change` once with the canonical addresses. Raises ValueError that names a bad one."""
    on_change(normalise_all(addresses))

"""The strategy of a pool, from its settings."""

from __future__ import annotations

from extproc.config import PoolConfig
from extproc.routing import Balance, Strategy, build


def made_of(config: PoolConfig) -> tuple[object, ...]:
    """What of a pool's settings its strategy depends on."""
    return config.strategy, config.prefix_length, config.concurrency_threshold, config.balance, config.shed


def strategy_of(config: PoolConfig, before: Strategy | None = None) -> Strategy:
    """A strategy as `config` wants it; `before` is the one that it replaces, if any."""
    balance = config.balance
    return build(
        config.strategy,
        prefix_length=config.prefix_length,
        concurrency_threshold=config.concurrency_threshold,
        balance=None if balance is None else Balance(balance.factor, balance.floor),
        max_in_flight=None if config.shed is None else config.shed.max_in_flight,
        before=before,
    )

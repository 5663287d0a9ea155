"""`extproc check`: what a configuration would run, or what is wrong with it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson

from extproc.config import (
    Config,
    ConfigError,
    EndpointsConfig,
    Key,
    Match,
    PoolConfig,
    RequestLogConfig,
    TlsConfig,
    keys,
    load,
)
from extproc.pool.discovery import file as endpoints_file


def _print_keys(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(key_table())
        context.exit()


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, also for errors.")
@click.option(
    "--keys",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_keys,
    help="Print every key with its meaning as a Markdown table, and stop.",
)
def command(file: Path, as_json: bool) -> None:
    """Check a configuration FILE and print what it would run.

    Nothing is started. Exits 0 if the file is valid; 2 if it is not or cannot be read, with every problem on
    standard error, one a line, as file:line: key: problem.

    An endpoints file that cannot be read is a warning: the router waits for it too. So is a certificate,
    which may lie elsewhere than this command runs: without it the router does not start. And so are a request
    log's directory and secret: without them its records are lost.
    """
    try:
        config = load(file)
    except ConfigError as error:
        if as_json:
            problems = [problem._asdict() for problem in error.problems]
            _print_json({"file": str(file), "valid": False, "problems": problems})
        else:
            click.echo(str(error), err=True)
        sys.exit(2)
    pools = [_Pool(pool) for pool in config.pools]
    warnings = [
        *_certificate_warnings(config.tls),
        *_request_log_warnings(config.request_log),
        *(pool.warning for pool in pools if pool.warning),
    ]
    if as_json:
        _print_json(
            {
                "file": str(file),
                "valid": True,
                "warnings": warnings,
                "endpoints": {pool.config.name: pool.count for pool in pools},
                "config": config.model_dump(mode="json"),
            }
        )
        return
    click.echo(_summary(file, config, pools))
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _certificate_warnings(config: TlsConfig | None) -> list[str]:
    if config is None:
        return []
    from extproc.certificates import TlsError, read

    try:
        read(config, time.time())
    except TlsError as error:
        return [str(error)]
    return []


def _request_log_warnings(config: RequestLogConfig | None) -> list[str]:
    if config is None:
        return []
    found = []
    if not config.path.parent.is_dir():
        found.append(
            f"requestLog.path: {config.path.parent}: no such directory; make it, or nothing is logged"
        )
    if config.secret_file is not None:
        from extproc.request_log import read_secret

        try:
            read_secret(config.secret_file)
        except (OSError, ValueError) as error:
            said = (error.strerror if isinstance(error, OSError) else None) or str(error)
            found.append(f"requestLog.secretFile: {config.secret_file}: {said}")
    return found


class _Pool:
    """A pool and how many endpoints it has now; None if its file cannot be read."""

    def __init__(self, pool: PoolConfig) -> None:
        self.config = pool
        self.count: int | None = None
        self.warning = ""
        if pool.endpoints.static is not None:
            self.count = len(pool.endpoints.static)
        elif pool.endpoints.file is not None:
            try:
                self.count = len(endpoints_file.read(pool.endpoints.file).addresses)
            except ValueError as error:
                self.warning = f"pool {pool.name}: {error}"

    def line(self) -> tuple[str, ...]:
        pool = self.config
        count = "unknown" if self.count is None else str(self.count)
        return (
            pool.name,
            _match(pool.match),
            pool.strategy.value,
            _bounds(pool),
            _endpoints(pool.endpoints, count),
        )


def _endpoints(endpoints: EndpointsConfig, count: str) -> str:
    if endpoints.service is not None:
        return f"ready endpoints of Service {endpoints.service.name}, port {endpoints.service.port}"
    if endpoints.inference_pool is not None:
        return f"ready pods of InferencePool {endpoints.inference_pool.name}"
    if endpoints.pods is not None:
        return f"ready pods with {endpoints.pods.selector}"
    return count if endpoints.file is None else f"{count} in {endpoints.file}"


def _summary(file: Path, config: Config, pools: list[_Pool]) -> str:
    listening = [
        ("ext_proc", f"{config.listen}{_tls(config.tls)}"),
        ("health", str(config.health or "off")),
        ("metrics", str(config.metrics or "off")),
        ("admin", str(config.admin or "off")),
        ("sharing", "off" if config.sharing is None else str(config.sharing.listen)),
    ]
    table = [("pool", "takes", "strategy", "in flight at most", "endpoints"), *(p.line() for p in pools)]
    beside = [
        f"settings of pool {pool.name} in {pool.settings_from.config_map.title} go before these"
        for pool in config.pools
        if pool.settings_from is not None
    ]
    sections = [*_columns(listening), "", *_columns(table), *(["", *beside] if beside else [])]
    return "\n".join([f"{file}: valid", "", *sections])


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _tls(tls: TlsConfig | None) -> str:
    if tls is None:
        return ""
    return " (TLS, clients show a certificate)" if tls.client_ca else " (TLS)"


def _match(match: Match | None) -> str:
    if match is None:
        return "everything"
    said = {"route": match.route, "metadata": match.metadata, "models": ", ".join(match.models)}
    return " and ".join(f"{key} {value}" for key, value in said.items() if value)


def _bounds(pool: PoolConfig) -> str:
    if pool.strategy != "PREFIX_AWARE":
        said = "-"
    elif pool.balance is None or pool.prefix_length == "auto":
        said = str(pool.concurrency_threshold)
    else:
        relative = f"max({pool.balance.factor:g} x mean, {pool.balance.floor})"
        said = f"min({pool.concurrency_threshold}, {relative})"
    return f"{said}; 429 at {pool.shed.max_in_flight}" if pool.shed else said


def key_table() -> str:
    """Every key as a Markdown table, as it stands in docs/configuration.md."""
    rows = ["| key | value | default | meaning |", "|---|---|---|---|", *map(_key_row, keys())]
    return "\n".join(rows)


def _key_row(key: Key) -> str:
    default = "required" if key.default is None else f"`{key.default}`"
    restart = " *Read at start only.*" if key.restart else ""
    return f"| `{key.path}` | {key.allowed} | {default} | {key.description}{restart} |"


def _print_json(value: dict[str, Any]) -> None:
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())

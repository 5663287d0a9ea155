"""`extproc envoy-config`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from extproc.config import Config, PoolConfig, TlsConfig
    from extproc.envoy_config import Exchange, RouterTls


class _Wrong(click.ClickException):
    """Shown as one message; ends the command with 2."""

    exit_code = 2


@click.command("envoy-config")
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="The router's configuration: endpoints, router address and route name are taken from it.",
)
@click.option("--pool", "pool_name", help="The pool, where the configuration has several.")
@click.option(
    "--endpoint",
    "endpoints",
    multiple=True,
    metavar="IP:PORT",
    help="An engine; repeatable. Instead of the configuration's.",
)
@click.option(
    "--endpoints-dns",
    metavar="NAME:PORT",
    help="Instead of addresses: a name that stands for all engines, such as that of a headless Service, which"
    " Envoy looks up each second.",
)
@click.option(
    "--router",
    "routers",
    multiple=True,
    metavar="ADDRESS",
    help="Where `extproc serve` listens: HOST:PORT or unix:/path; repeatable. Default: `listen` of the"
    " configuration, else 127.0.0.1:9002.",
)
@click.option(
    "--listen", default="127.0.0.1:8080", show_default=True, metavar="IP:PORT", help="Where clients connect."
)
@click.option(
    "--plain-listen",
    metavar="IP:PORT",
    help="A second listener that does not ask the router, to measure what it adds.",
)
@click.option(
    "--exchange",
    type=click.Choice(["two-message", "one-message"]),
    default="two-message",
    show_default=True,
    help="two-message: Envoy sends headers, then body. one-message: only the body, which is faster; what has"
    " no content-length within the limit still takes two.",
)
@click.option(
    "--body-limit",
    type=int,
    default=1024 * 1024,
    show_default=True,
    metavar="BYTES",
    help="Up to it a body is keyed whole and retried on another engine; a longer one is keyed by its first"
    " part and not retried.",
)
@click.option(
    "--message-timeout",
    type=float,
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="How long Envoy waits for each answer of the router.",
)
@click.option(
    "--fail-closed",
    is_flag=True,
    help="Without the router refuse requests, instead of sending them to the engine with the fewest.",
)
@click.option(
    "--router-ca",
    metavar="FILE",
    help="Speak TLS with the router and trust what these PEM certificates vouch for. Default, where the"
    " configuration has tls: its clientCa if that issued its certificate, else the certificate itself, which"
    " Envoy must then be told anew when it is renewed.",
)
@click.option(
    "--client-cert", metavar="FILE", help="PEM certificate that Envoy shows, for a router with tls.clientCa."
)
@click.option("--client-key", metavar="FILE", help="Its private key.")
@click.option("--route-name", help="Envoy's route name. Default: one that the pool's match.route takes.")
@click.option(
    "--admin",
    default="127.0.0.1:9901",
    show_default=True,
    metavar="ADDRESS",
    help="Envoy's admin address, IP:PORT or unix:/path; off for none. Beyond loopback it serves only"
    " /ready and /stats.",
)
@click.option("--access-log", metavar="PATH", help="JSON access log, for example /dev/stdout.")
@click.option(
    "--format", "form", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="Output."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to a file, replacing it at once, instead of standard output.",
)
@click.option(
    "--envoy",
    metavar="PATH",
    help="Envoy binary that checks the result. Default: the one beside this Python, then on PATH.",
)
@click.option("--no-validate", is_flag=True, help="Do not have an Envoy binary check the result.")
def command(
    path: Path | None,
    pool_name: str | None,
    endpoints: tuple[str, ...],
    endpoints_dns: str | None,
    routers: tuple[str, ...],
    listen: str,
    plain_listen: str | None,
    exchange: Exchange,
    body_limit: int,
    message_timeout: float,
    fail_closed: bool,
    router_ca: str | None,
    client_cert: str | None,
    client_key: str | None,
    route_name: str | None,
    admin: str,
    access_log: str | None,
    form: Literal["yaml", "json"],
    output: Path | None,
    envoy: str | None,
    no_validate: bool,
) -> None:
    """Print a complete Envoy configuration that sends a pool's requests where the router says.

    The endpoints are those of now, unless --endpoints-dns names them: print again when they change. The
    result is checked against Envoy's descriptors, and by an Envoy binary where one is found.

    Exit codes: 0 printed, 1 the file cannot be written, 2 the command line or the configuration is wrong, 3
    Envoy refuses the result.
    """
    from extproc import envoy_config

    config = None if path is None else _load(path)
    pool = None if config is None else _pool(config, pool_name)
    if pool is None and pool_name is not None:
        raise _Wrong("--pool chooses from a configuration: give --config too")
    if not endpoints and endpoints_dns is None:
        if pool is None:
            raise _Wrong("no endpoints: give --config FILE, --endpoint IP:PORT or --endpoints-dns NAME:PORT")
        endpoints = _endpoints(pool)
    if not routers:
        routers = ("127.0.0.1:9002",) if config is None else (str(config.listen),)
    try:
        options = envoy_config.Options(
            endpoints=endpoints,
            endpoints_dns=endpoints_dns,
            routers=routers,
            tls=_tls(config, router_ca, client_cert, client_key),
            listen=listen,
            plain_listen=plain_listen,
            exchange=exchange,
            body_limit=body_limit,
            fail_closed=fail_closed,
            message_timeout=message_timeout,
            admin=None if admin == "off" else admin,
            access_log=access_log,
            route_name=route_name or _route_name(pool),
            pool=pool.match.metadata if pool is not None and pool.match is not None else None,
            **({} if config is None else {"max_message_bytes": config.max_message_bytes}),
        )
    except envoy_config.OptionsError as error:
        raise _Wrong(str(error)) from None
    text = envoy_config.render(envoy_config.bootstrap(options), form)
    if not no_validate:
        _validate(text, envoy)
    if output is None:
        click.echo(text, nl=False)
    else:
        _write(output, text)


def _tls(
    config: Config | None, router_ca: str | None, client_cert: str | None, client_key: str | None
) -> RouterTls | None:
    """How to speak with the router: as its configuration says, or where there is none as the options do."""
    from extproc.envoy_config import RouterTls

    tls = None if config is None else config.tls
    if tls is None:
        if router_ca is None and client_cert is None and client_key is None:
            return None
        if config is not None:
            raise _Wrong(
                "the router's configuration has no tls: leave out --router-ca, --client-cert, --client-key"
            )
        return RouterTls(trusted_ca=router_ca, cert=client_cert, key=client_key)
    if tls.client_ca is not None and client_cert is None:
        raise _Wrong(
            f"the router serves only clients whose certificate is of {tls.client_ca} (tls.clientCa): give"
            " --client-cert and --client-key"
        )
    names: tuple[str, ...] = ()
    if router_ca is None and tls.cert is not None:
        router_ca, names = _trust(tls)
    if router_ca is None:
        click.echo("the router's certificate is self-signed: Envoy will not ask who answers", err=True)
    return RouterTls(trusted_ca=router_ca, names=names, cert=client_cert, key=client_key)


def _trust(tls: TlsConfig) -> tuple[str, tuple[str, ...]]:
    """What to trust the router's certificate by, and the names that it must be valid for."""
    from extproc.certificates import TlsError, issued, read

    try:
        material = read(tls, time.time())
    except TlsError as error:
        raise _Wrong(f"{error}; or name what to trust with --router-ca") from None
    trusted = tls.client_ca if issued(material) else tls.cert
    assert trusted is not None  # noqa: S101  the caller has seen to it
    return str(trusted.absolute()), material.names


def _load(path: Path) -> Config:
    from extproc.config import ConfigError, load

    try:
        return load(path)
    except ConfigError as error:
        raise _Wrong(str(error)) from None


def _pool(config: Config, name: str | None) -> PoolConfig:
    names = ", ".join(pool.name for pool in config.pools)
    if name is None:
        if len(config.pools) > 1:
            raise _Wrong(f"the configuration has several pools: choose with --pool one of {names}")
        return config.pools[0]
    for pool in config.pools:
        if pool.name == name:
            return pool
    raise _Wrong(f"no pool {name!r} in the configuration: it has {names}")


def _endpoints(pool: PoolConfig) -> tuple[str, ...]:
    if pool.endpoints.static is not None:
        return pool.endpoints.static
    from extproc.pool.discovery import file

    if pool.endpoints.file is None:
        raise _Wrong(
            f"pool {pool.name}: its endpoints are Kubernetes pods; give --endpoints-dns NAME:PORT, the name"
            " of a headless Service that selects them, or --endpoint IP:PORT"
        )
    try:
        endpoints = file.read(pool.endpoints.file).addresses
    except ValueError as error:
        raise _Wrong(f"pool {pool.name}: {error}") from None
    if not endpoints:
        raise _Wrong(f"pool {pool.name}: {pool.endpoints.file} names no endpoints; give --endpoint IP:PORT")
    return endpoints


def _route_name(pool: PoolConfig | None) -> str:
    if pool is None:
        return "llm"
    pattern = pool.match.route if pool.match is not None else None
    if pattern is None:
        return pool.name
    if set(pattern) & set("?["):
        raise _Wrong(f"pool {pool.name} takes the routes {pattern!r}: choose one with --route-name")
    return pattern.replace("*", pool.name)


def _validate(text: str, envoy: str | None) -> None:
    from extproc import envoy_config

    if envoy is not None and shutil.which(envoy) is None:
        raise _Wrong(f"--envoy {envoy}: is no program that can be run; name one, or give --no-validate")
    binary = envoy or envoy_config.find_envoy()
    if binary is None:
        click.echo("no envoy found, so none has checked this (--envoy PATH names one)", err=True)
        return
    try:
        envoy_config.validate(text, binary)
    except envoy_config.InvalidError as error:
        click.echo(f"Envoy refuses the configuration: {error}", err=True)
        sys.exit(3)


def _write(path: Path, text: str) -> None:
    """Replace the file in one step: an Envoy that starts meanwhile reads the old or the new one."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            try:
                file.write(text)
                Path(file.name).chmod(0o644)
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror or error}") from None

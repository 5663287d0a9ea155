"""`extproc epp`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from extproc.config import Config
    from extproc.endpoint_picker import Flags

F = TypeVar("F", bound=Callable[..., object])

DEBUG_VERBOSITY = 4
"""`-v` from which the reference Endpoint Picker logs what it calls DEBUG."""

_ALWAYS_ON = ("enable-cert-reload", "health-checking")
"""Flags of the reference for what is always so here. Saying no to them is said to be in vain."""


class _GoCommand(click.Command):
    """Takes flags as Go programs do: `-name`, `--name`, `--name value`, `--name=value`; a switch alone is
    true. Flags that are not known are left for the command to warn of.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [re.sub(r"^-(?=[a-z][-a-z]+|[a-z]=)", "--", one) for one in args])


def _ports(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in (value or "").split(",") if part.strip()))
    except ValueError:
        raise click.BadParameter(f"{value!r}: must be ports with commas, for example 8000,8001") from None


def _switch(name: str, text: str) -> Callable[[F], F]:
    return click.option(f"--{name}", type=bool, is_flag=False, flag_value=True, metavar="[BOOL]", help=text)


@click.command(
    "epp", cls=_GoCommand, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
@click.option("--pool-name", metavar="NAME", help="The InferencePool, watched in Kubernetes.")
@click.option(
    "--pool-namespace",
    metavar="NAME",
    help="Its namespace.  [default: environment variable NAMESPACE, else that of this pod]",
)
@click.option(
    "--pool-group",
    default="inference.networking.k8s.io",
    show_default=True,
    metavar="GROUP",
    help="Its API group; no other is understood.",
)
@click.option(
    "--endpoint-selector", metavar="LABELS", help="Instead of an InferencePool: the pods with these labels."
)
@click.option(
    "--endpoint-target-ports",
    callback=_ports,
    metavar="PORT,...",
    help="With --endpoint-selector: the engines' ports.",
)
@click.option(
    "--endpoints",
    metavar="IP:PORT,...",
    help="The endpoints themselves, without Kubernetes; goes before the flags above.",
)
@click.option(
    "--endpoints-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A YAML list of endpoints, watched, without Kubernetes; goes before the flags above.",
)
@click.option("--grpc-port", type=click.IntRange(0, 65535), help="Port of ext_proc.  [default: 9002]")
@click.option(
    "--grpc-health-port",
    type=click.IntRange(0, 65535),
    help="Port of gRPC health, in plaintext.  [default: 9003]",
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Port of /metrics, in plaintext.  [default: 9090]"
)
@_switch("secure-serving", "Serve ext_proc by TLS.  [default: true]")
@click.option(
    "--cert-path",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Holds tls.crt and tls.key, watched.  [default: a self-signed certificate]",
)
@_switch("disable-endpoint-subset-filter", "Pick beyond the endpoints that the gateway's metadata names.")
@click.option(
    "--config-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The router's YAML configuration with one pool, watched; flags go before it. One of another Endpoint"
    " Picker (kind: EndpointPickerConfig) is ignored with a warning.",
)
@click.option("--config-text", metavar="YAML", help="The same as text.")
@click.option(
    "-v", "--v", "verbosity", type=int, metavar="N", help=f"From {DEBUG_VERBOSITY} on log debug messages."
)
@click.option("--zap-log-level", metavar="LEVEL", help="debug, info, error or a verbosity.")
@click.option("--zap-encoder", type=click.Choice(["json", "console"]), help="Format of the log.")
@click.option(
    "--conformance",
    is_flag=True,
    envvar="EXTPROC_EPP_CONFORMANCE",
    help="For the conformance suite of gateways alone: a client's header chooses the endpoint. Also by the"
    " environment variable EXTPROC_EPP_CONFORMANCE=1.",
)
@click.pass_context
def command(
    ctx: click.Context,
    pool_name: str | None,
    pool_namespace: str | None,
    pool_group: str,
    endpoint_selector: str | None,
    endpoint_target_ports: tuple[int, ...],
    endpoints: str | None,
    endpoints_file: Path | None,
    grpc_port: int | None,
    grpc_health_port: int | None,
    metrics_port: int | None,
    secure_serving: bool | None,
    cert_path: Path | None,
    disable_endpoint_subset_filter: bool | None,
    config_file: Path | None,
    config_text: str | None,
    verbosity: int | None,
    zap_log_level: str | None,
    zap_encoder: Any,
    conformance: bool,
) -> None:
    """Run as the Endpoint Picker of an InferencePool, until SIGTERM or SIGINT.

    Takes the command line of the Gateway API Inference Extension's reference picker: name it in a Deployment
    in that one's place. Flags that are not known are a warning. Endpoints come from Kubernetes (--pool-name
    or --endpoint-selector), or without it from --endpoints or --endpoints-file.

    Exit codes: 0 drained, 1 an address cannot be listened on, 2 the command line, the configuration or a
    certificate is wrong.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as in `extproc serve`

    import structlog

    from extproc import config as files
    from extproc import endpoint_picker, logs
    from extproc.certificates import TlsError
    from extproc.endpoint_picker import Flags
    from extproc.run import ORDINARY, ExchangeKind, run
    from extproc.server import ListenError

    flags = Flags(
        pool_name=pool_name,
        pool_namespace=pool_namespace or os.environ.get("NAMESPACE") or None,
        endpoint_selector=endpoint_selector,
        endpoint_target_ports=endpoint_target_ports,
        endpoints=tuple(part.strip() for part in (endpoints or "").split(",") if part.strip()),
        endpoints_file=endpoints_file,
        grpc_port=grpc_port,
        grpc_health_port=grpc_health_port,
        metrics_port=metrics_port,
        secure_serving=secure_serving,
        cert_path=cert_path,
        endpoint_subset=None
        if disable_endpoint_subset_filter is None
        else not disable_endpoint_subset_filter,
        log_format=zap_encoder,
        log_level=_level(verbosity, zap_log_level),
    )
    warnings = _warnings(ctx, pool_group)
    path: Path | None = None
    try:
        if config_file is not None and config_text is not None:
            raise click.UsageError("--config-file and --config-text exclude each other: keep one")
        text = files.read_text(config_file) if config_file is not None else config_text
        source = "--config-text" if config_file is None else str(config_file)
        base: Config | None = None
        if text is not None and endpoint_picker.is_foreign(text):
            warnings.append(f"{source} is the configuration of another Endpoint Picker; ignored")
        elif text is not None:
            path = config_file
            base = files.parse(text, source, Path() if config_file is None else config_file.parent)
        config = endpoint_picker.settings(flags, base)
    except files.ConfigError as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None
    logs.set_up(config.log)
    log = structlog.get_logger(__name__)
    for warning in warnings:
        log.warning(warning)
    exchange = ORDINARY
    if conformance:
        from extproc.conformance import ConformanceExchange, decode

        exchange = ExchangeKind(decode, ConformanceExchange)
        log.warning("conformance: a header that any client can send chooses the endpoint; not for production")
    try:
        asyncio.run(run(config, path, parse=_parse(flags), exchange=exchange))
    except TlsError as error:
        click.echo(f"extproc epp: {error}", err=True)
        raise SystemExit(2) from None
    except (ListenError, OSError) as error:
        click.echo(f"extproc epp: {error}", err=True)
        raise SystemExit(1) from None


def _parse(flags: Flags) -> Any:
    """How a changed file is read: flags go before it, as at the start."""
    from extproc import endpoint_picker
    from extproc.config import parse

    return lambda text, source, directory: endpoint_picker.settings(flags, parse(text, source, directory))


def _level(verbosity: int | None, zap: str | None) -> Any:
    """The level that the reference's two flags ask for; None: neither was given."""
    if zap is not None and not zap.isdecimal():
        return zap.lower() if zap.lower() in ("debug", "info", "error") else "info"
    if zap is not None:
        verbosity = int(zap)
    return None if verbosity is None else ("debug" if verbosity >= DEBUG_VERBOSITY else "info")


def _warnings(ctx: click.Context, pool_group: str) -> list[str]:
    """What of the command line has no meaning here."""
    from extproc.endpoint_picker import GROUP

    warnings = []
    if pool_group != GROUP:
        warnings.append(f"--pool-group {pool_group} is not understood; {GROUP} is watched")
    known = [option for param in ctx.command.params for option in param.opts]
    unknown = [one.split("=")[0] for one in ctx.args if one.startswith("--")]
    for flag in dict.fromkeys(unknown):
        if flag.removeprefix("--") in _ALWAYS_ON:
            continue
        near = get_close_matches(flag, known, n=1, cutoff=0.8)
        warnings.append(
            f"flag {flag} is not known; ignored" + (f" (did you mean {near[0]}?)" if near else "")
        )
    return warnings

"""`extproc doctor`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from extproc.config import Config
    from extproc.doctor.diagnosis import Evidence
    from extproc.doctor.reading import Asked


@click.command("doctor")
@click.option(
    "--namespace",
    "-n",
    default="warmroute",
    show_default=True,
    metavar="NAME",
    help="Namespace of the router.",
)
@click.option("--service", default="extproc", show_default=True, metavar="NAME", help="The router's Service.")
@click.option(
    "--config-map",
    default="extproc",
    show_default=True,
    metavar="NAME",
    help="ConfigMap with the router's configuration.",
)
@click.option("--key", default="extproc.yaml", show_default=True, help="Its key.")
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="The router's configuration as a file, instead of the ConfigMap.",
)
@click.option(
    "--service-account",
    metavar="NAME",
    help="ServiceAccount of the router.  [default: that of the pods behind the Service, else its name]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
def command(
    namespace: str,
    service: str,
    config_map: str,
    key: str,
    path: Path | None,
    service_account: str | None,
    as_json: bool,
    strict: bool,
) -> None:
    """Say what is wrong with the router's attachment to a gateway in Kubernetes.

    Looks for the EnvoyExtensionPolicies and InferencePools that name the router's Service, at the policies
    and Gateways of their routes, at the Service, its rights, and the Services that its pools name. Changes
    nothing. Reads the API server of the kubeconfig (KUBECONFIG, ~/.kube/config), or in a pod that of the
    cluster.

    Exit codes: 0 no errors, 1 something is wrong, 2 the API server cannot be asked, or the command line or
    FILE is wrong.
    """
    import orjson

    from extproc.doctor.diagnosis import diagnose
    from extproc.doctor.findings import Severity
    from extproc.doctor.inventory import Reference
    from extproc.doctor.reading import Asked
    from extproc.doctor.report import as_json as json_of
    from extproc.doctor.report import as_text

    config = None if path is None else _load(path)
    asked = Asked(Reference(namespace, service), config_map, key, config, service_account)
    evidence = _evidence(asked)
    findings = diagnose(evidence)
    if as_json:
        click.echo(orjson.dumps(json_of(evidence, findings), option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(as_text(evidence, findings))
    if any(strict or finding.severity is Severity.ERROR for finding in findings):
        sys.exit(1)


def _load(path: Path) -> Config:
    from extproc.config import ConfigError, load

    try:
        return load(path)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


def _evidence(asked: Asked) -> Evidence:
    import aiohttp

    from extproc.doctor.reading import read
    from extproc.pool.discovery.kubernetes import ApiError, connected

    async def look() -> Evidence:
        async with connected() as cluster:
            return await read(cluster, asked)

    try:
        return asyncio.run(look())
    except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
        said = str(error) or type(error).__name__
        click.echo(
            f"extproc doctor: the API server cannot be asked: {said}; see whether kubectl can", err=True
        )
        sys.exit(2)

"""`extproc serve`."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import click


@click.command
@click.option(
    "--config",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    help="YAML configuration; see docs/configuration.md. Watched: changes apply without a restart.",
)
def command(path: Path) -> None:
    """Run the external processor until SIGTERM or SIGINT.

    SIGTERM drains: health turns NOT_SERVING, streams whose endpoint is picked are closed so that Envoy
    finishes them alone, and the process ends within drainTimeout. SIGHUP reads the configuration again; a
    bad file keeps the running one.

    Exit codes: 0 drained, 1 an address cannot be listened on, 2 the configuration, the command line or a
    certificate is wrong.
    """
    # Until the reloader listens, whose first act is to look at the file: by default the signal is deadly.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    from extproc import logs
    from extproc.certificates import TlsError
    from extproc.config import ConfigError, load
    from extproc.run import run
    from extproc.server import ListenError

    try:
        config = load(path)
    except ConfigError as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None
    logs.set_up(config.log)
    try:
        asyncio.run(run(config, path))
    except TlsError as error:
        click.echo(f"extproc serve: {error}", err=True)
        raise SystemExit(2) from None
    except (ListenError, OSError) as error:
        click.echo(f"extproc serve: {error}", err=True)
        raise SystemExit(1) from None

"""`cacheprep demo`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from cacheprep.commands.options import Size


@click.command("demo")
@click.option("--size", type=Size("4MiB"), default="256MiB", help="Of the model that is made.")
@click.option("--bandwidth", type=Size("1B"), default="24MiB", help="Bytes per second from the source.")
@click.option(
    "--seconds",
    type=click.FloatRange(10, 600),
    default=45.0,
    help="Of traffic to engines.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/demo/cacheprep"),
    help="Directory for all of it; what an earlier demo left there is removed.",
)
def command(size: int, bandwidth: int, seconds: float, out: Path) -> None:
    """Fetch a small model, kill it half way, go on and verify; then let an engine join cold and turn warm.

    The source is a web server on this machine and the engines are simulated; the rest is real. Exit codes: 0
    done; 1 something did not run (the message says what); 130 interrupted.
    """
    from rich.console import Console

    from cacheprep import demo
    from extproc.demo.stack import StackError

    try:
        asyncio.run(demo.run(out, size, bandwidth, seconds, Console(highlight=False, soft_wrap=True)))
    except (RuntimeError, StackError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(130) from None

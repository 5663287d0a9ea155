"""`extproc demo`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from time import monotonic

import click

RATE_PER_ENGINE = 6.0
"""Requests per second and engine: 65 to 80 % of the time a simulated engine of the demo prefills, without
prefix-aware routing."""
PRESET = "demo"
EXIT_INTERRUPTED = 130


@click.command("demo")
@click.option(
    "--engines", type=click.IntRange(2, 16), default=4, show_default=True, help="Simulated engines."
)
@click.option(
    "--seconds",
    type=click.FloatRange(5, 600),
    default=45.0,
    show_default=True,
    help="Length of each of the three runs.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0.5, 200),
    help=f"Requests per second on average.  [default: {RATE_PER_ENGINE:g} per engine]",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Decides which sessions, and when.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/demo"),
    show_default=True,
    help="Directory for reports, configurations and logs.",
)
@click.option("--keep", is_flag=True, help="Leave everything running afterwards, until Ctrl-C.")
def command(engines: int, seconds: float, rate: float | None, seed: int, out: Path, keep: bool) -> None:
    """Replay real traffic through a real Envoy and the router to simulated engines, once per strategy.

    Writes report.json and report.html, and shows the comparison. Exit codes: 0 done; 1 a process could not be
    started, ended by itself, or the traffic cannot be made (the message says which); 2 the command line is
    wrong; 130 interrupted.
    """
    try:
        import aiohttp
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error.name} is missing: pip install 'warmroute[demo]'") from error
    from extproc.demo.stack import StackError

    try:
        asyncio.run(_main(engines, seconds, rate or RATE_PER_ENGINE * engines, seed, out, keep=keep))
    except (StackError, ValueError, OSError, aiohttp.ClientError) as error:
        raise click.ClickException(str(error)) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("interrupted", err=True)
        raise SystemExit(EXIT_INTERRUPTED) from None


async def _main(engines: int, seconds: float, rate: float, seed: int, out: Path, *, keep: bool) -> None:
    from rich.console import Console

    from extproc.demo import experiment, report, stack
    from extproc.demo.console import PhaseProgress
    from extproc.demo.traffic import traffic

    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    console = Console(highlight=False, soft_wrap=True)
    began = monotonic()
    used = traffic(seconds, rate, seed)
    console.print(
        f"warmroute demo: {len(used.arrivals)} requests over {seconds:g} s under each of "
        f"{len(stack.STRATEGIES)} strategies, {engines} [bold]simulated[/bold] engines, a real Envoy"
    )
    report.discard(out)  # what an earlier demo left must not pass for the result of one that fails
    async with stack.running(out, engines, PRESET, seed) as running:
        with PhaseProgress(console) as progress:
            result = await experiment.guarded(running, experiment.run(running, used, progress))
        settings = {
            "engines": engines,
            "rate": rate,
            "seconds": seconds,
            "seed": seed,
            "preset": PRESET,
            "concurrency_threshold": stack.CONCURRENCY_THRESHOLD,
            "stream_interval": stack.STREAM_INTERVAL,
        }
        content = report.content(result, used, settings)
        as_json, as_html = await asyncio.to_thread(report.write, out, content, result)
        console.print(report.table(content))
        added = content["router_added_ms"]
        console.print(
            f"The router adds {added['p50']:.2f} ms at the median, {added['p99']:.2f} ms at p99 (8 KB, idle)."
        )
        for note in content["notes"]:
            console.print(f"- {note}")
        console.print(f"{as_html}  {as_json}  ({monotonic() - began:.0f} s)")
        if keep:
            console.print(_addresses(running))
            with contextlib.suppress(asyncio.CancelledError):
                await experiment.guarded(running, asyncio.Event().wait())


def _addresses(running: object) -> str:
    from extproc.demo.stack import Stack

    assert isinstance(running, Stack)  # noqa: S101 - typed loosely so that the demo's libraries are imported late
    engines = "\n".join(f"  {name:<18} http://{address}" for name, address in running.engines.items())
    return f"""
Running until Ctrl-C:
  gateway            http://{running.gateway}/v1   (any OpenAI client; model and key are ignored)
  without the router http://{running.plain}/v1
  Envoy admin        http://{running.admin}
  router metrics     http://{running.metrics}/metrics
{engines}
  router config      {running.config}   (change it: it is reloaded live)

  curl -si http://{running.gateway}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "demo", "max_tokens": 20, "messages": [{{"role": "user", "content": "hello"}}]}}'
"""

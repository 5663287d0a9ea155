"""`extproc simulate`: simulated LLM engines, several in one process."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace

import click
import orjson

from extproc.simulation.presets import PRESETS


@click.command("simulate")
@click.option(
    "--port",
    "ports",
    type=click.IntRange(0, 65535),
    multiple=True,
    required=True,
    help="Port of an engine, once per engine; 0 picks a free one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--preset",
    type=click.Choice(sorted(PRESETS)),
    default="demo",
    show_default=True,
    help="Speed and size of each engine.",
)
@click.option("--blocks", type=click.IntRange(1), help="KV cache blocks per engine, instead of the preset's.")
@click.option(
    "--max-num-seqs", type=click.IntRange(1), help="Requests running at once, instead of the preset's."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Decides output lengths and texts.")
@click.option(
    "--speed",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Engine seconds per real second.",
)
@click.option(
    "--stream-interval",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Tokens per streamed event after the first.",
)
@click.option(
    "--mean-output-tokens",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Mean output length where the request does not decide it.",
)
@click.option(
    "--name", default="", help="Name of the engine in its replies; several are numbered. [default: engine]"
)
@click.option("--model", default="simulated", show_default=True, help="Model name to report.")
@click.option(
    "--log",
    "log_format",
    type=click.Choice(["console", "json"]),
    help="Format of the lines printed. [default: console on a terminal, else json]",
)
def command(
    ports: tuple[int, ...],
    host: str,
    preset: str,
    blocks: int | None,
    max_num_seqs: int | None,
    seed: int,
    speed: float,
    stream_interval: int,
    mean_output_tokens: int,
    name: str,
    model: str,
    log_format: str | None,
) -> None:
    """Run simulated LLM engines: OpenAI-compatible HTTP, timing and KV cache of a real engine, no model.

    Exits 0 on SIGTERM or Ctrl-C, 1 if a port is in use.
    """
    from extproc.simulation.http import Settings

    spec = PRESETS[preset]
    spec = replace(spec, blocks=blocks or spec.blocks, max_num_seqs=max_num_seqs or spec.max_num_seqs)
    settings = Settings(spec, seed, speed, stream_interval, mean_output_tokens, model, host, name)
    as_json = (log_format or ("console" if sys.stdout.isatty() else "json")) == "json"
    try:
        asyncio.run(_run(ports, settings, as_json=as_json))
    except OSError as error:
        raise click.ClickException(f"{error.strerror or error}; take another --port or --host") from error


async def _run(ports: tuple[int, ...], settings: object, *, as_json: bool) -> None:
    from extproc.simulation.http import Settings, engines

    assert isinstance(settings, Settings)  # noqa: S101 - typed loosely so that aiohttp is imported late
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def say(event: str, text: str, **fields: object) -> None:
        line = orjson.dumps({"event": event, "simulation": True, **fields}).decode() if as_json else text
        click.echo(line)

    async with engines(ports, settings) as started:
        source = settings.spec.source
        say(
            "simulation",
            f"simulation: no model runs here; timing and KV cache only ({source})",
            source=source,
        )
        for engine in started:
            say("engine", f"  {engine.name}  {engine.url}", name=engine.name, address=engine.address)
        addresses = {engine.name: engine.address for engine in started}
        say("ready", "ready", engines=addresses)
        await stop.wait()
    say("stopped", "stopped")

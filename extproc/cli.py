"""The `extproc` command. Each subcommand is one file in `extproc/commands/`, imported only when called."""

from __future__ import annotations

import click

from extproc import __version__
from extproc.subcommands import Subcommands

_COMMANDS = {
    "check": "Check a configuration file and say what is wrong with it.",
    "demo": "Replay real traffic through a real Envoy under each strategy and compare.",
    "doctor": "Say what is wrong with the router's attachment to a gateway in Kubernetes.",
    "epp": "Run as the Endpoint Picker of an InferencePool.",
    "explain": "Say where a request would go, and why.",
    "envoy-config": "Print a complete Envoy configuration for a pool.",
    "replay": "Replay a trace of requests against strategies and other routers' policies.",
    "serve": "Run the external processor.",
    "simulate": "Run simulated LLM engines.",
}

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it: 128 and the signal's number."""


class _Commands(Subcommands):
    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Click would end with 1, which has a meaning of its own for some commands.
            click.echo("Stopped.", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None


@click.group(
    cls=_Commands,
    package="extproc.commands",
    summaries=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="extproc")
def main() -> None:
    """Send equal prompt prefixes to the same LLM engine, from behind Envoy.

    After Ctrl-C the exit code is 130; `serve`, `epp` and `simulate` come to an orderly end and exit with 0.
    """

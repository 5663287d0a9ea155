"""The `extproc` command. Each subcommand is one file in `extproc/commands/`, imported only when called."""

from __future__ import annotations

from importlib import import_module

import click

from extproc import __version__

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


class _Commands(click.Group):
    """Lists every command without importing it: `extproc check` must not load gRPC or plots."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"extproc.commands.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, self.list_commands(ctx), 1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Click would end with 1, which has a meaning of its own for some commands.
            click.echo("Stopped.", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="extproc")
def main() -> None:
    """Send equal prompt prefixes to the same LLM engine, from behind Envoy.

    After Ctrl-C the exit code is 130; `serve`, `epp` and `simulate` come to an orderly end and exit with 0.
    """

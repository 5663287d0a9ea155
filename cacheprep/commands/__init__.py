"""One file per subcommand; each exports `command`. They parse arguments, call one room and print.

Every command ends with 0 or with the exit code of the reason for which it failed (`failures.Reason`).
"""

from __future__ import annotations

import click

from cacheprep.commands.options import wants_json
from cacheprep.commands.output import failed
from cacheprep.failures import Failure, Reason
from extproc.subcommands import Subcommands

_COMMANDS = {
    "agent": "Say what is on the disks of a node of a cluster, and keep it verified.",
    "controller": "Keep the model caches of a cluster as its objects ask for.",
    "demo": "See it work, on this machine.",
    "du": "Say what the caches of a root take, and what its disk has left.",
    "ensure": "Have a cache ready: at once if it is, else by fetching it.",
    "estimate": "Estimate size, time to fill and time saved for a model on a node type.",
    "fetch": "Fetch a model, verify it, and publish it whole.",
    "gc": "Delete what dead processes left.",
    "ls": "List the caches of a root.",
    "rm": "Remove caches.",
    "run": "Run a command while a cache is kept in use.",
    "status": "Say how the model caches of a cluster are, and what is done next and why.",
    "sources": "Ask a source what it has.",
    "verify": "Verify caches: quickly, or by hashing every byte.",
}


class _Commands(Subcommands):
    """Turns a failure into its exit code."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if not wants_json(ctx):
                raise
            failure = Failure(Reason.INVALID_REQUEST, error.format_message())
        except Failure as found:
            failure = found
        except KeyboardInterrupt:
            failure = Failure(Reason.CANCELED, "stopped by SIGINT")
        failed(failure, as_json=wants_json(ctx))
        raise click.exceptions.Exit(failure.reason.exit_code)


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from cacheprep import __version__

        click.echo(f"cacheprep, version {__version__}")
        context.exit()


def _epilog() -> str:
    lines = ["\b", "Exit codes:", "  0    done", "  1    a defect of cacheprep"]
    lines += [f"  {reason.exit_code:<4} {reason}" for reason in Reason]
    return "\n".join(lines)


_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(
    cls=_Commands,
    package="cacheprep.commands",
    summaries=_COMMANDS,
    context_settings=_SETTINGS,
    epilog=_epilog(),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def cacheprep() -> None:
    """Put model weights on the disk of a node before the pods that need them.

    What is fetched is verified, made durable, and published whole: a cache that is ready is complete,
    also after kill -9 or loss of power.
    """

"""A command line of subcommands: each is one module, imported only when it is called.

`extproc check` must not load gRPC or plots, nor `cacheprep ls` a cloud's SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class Subcommands(click.Group):
    """Lists every subcommand without importing it, and answers a misspelt one with the nearest.

    Args:
        package: where the modules are; each exports `command`.
        summaries: what each subcommand does, by its name; `-` stands for `_` in its module's name.
        attributes: as of `click.Group`.
    """

    def __init__(self, *, package: str, summaries: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(**attributes)
        self._package = package
        self._summaries = dict(sorted(summaries.items()))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all, in order."""
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them, imported; None if there is none of this name."""
        if cmd_name not in self._summaries:
            return None
        module = import_module(f"{self._package}.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, which knows no names to suggest."""
        name = args[0]
        if name not in self._summaries and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, self._summaries, 1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The part of the help that lists them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))

"""Options that several commands have, and the values that they take."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from cacheprep.failures import Failure, Reason
from cacheprep.store.inventory import keys
from cacheprep.store.layout import Layout, check_key_prefix, is_key

_Command = TypeVar("_Command", bound=Callable[..., Any])

_JSON = f"{__name__}.json"

_UNITS = {
    "": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate(("", "k", "M", "G", "T"))},
    **{f"{letter}iB": 1024**power for power, letter in enumerate(("K", "M", "G", "T"), 1)},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?i?B?)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Size(click.ParamType[int]):
    """Bytes, as 500MB or 64GiB; not less than `least`, which is written like that, too."""

    name = "size"

    def __init__(self, least: str = "0") -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes; refuses what is none, or too little."""
        amount = value if isinstance(value, int) else self._bytes(value, param, ctx)
        if amount < self._bytes(self._least, param, ctx):
            self.fail(f"{value!r} is too little; it takes {self._least} at least", param, ctx)
        return amount

    def _bytes(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _SIZE.fullmatch(value.strip())
        unit = match[2] if match else ""
        if unit and not unit.endswith("B"):
            unit += "B"
        unit = unit.replace("KB", "kB")
        if match is None or unit not in _UNITS:
            self.fail(f"{value!r} is no size; write it as 500MB or 64GiB", param, ctx)
        return int(float(match[1]) * _UNITS[unit])


class Duration(click.ParamType[float]):
    """Seconds, as 30s, 10m, 24h or 7d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds; refuses what is none."""
        if isinstance(value, float):
            return value
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            self.fail(f"{value!r} is no duration; write it as 30s, 10m, 24h or 7d", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


class Share(click.ParamType[float]):
    """A part of a whole, as 85%."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """0 to 1; refuses what is none."""
        if isinstance(value, float):
            return value
        try:
            share = float(value.removesuffix("%")) / 100
        except ValueError:
            share = -1
        if not value.endswith("%") or not 0 < share <= 1:
            self.fail(f"{value!r} is no part of a disk; write it as 85%", param, ctx)
        return share


def root_option(command: _Command) -> _Command:
    """`--to ROOT`."""
    return click.option(
        "--to",
        "root",
        required=True,
        envvar="CACHEPREP_ROOT",
        show_envvar=True,
        metavar="ROOT",
        help="Cache root: a directory on a local disk.",
    )(command)


def json_option(command: _Command) -> _Command:
    """`--json`. Read before all other options, so that what is wrong with them is said as JSON, too."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        is_eager=True,
        callback=_remember_json,
        help="Print the result as JSON, and a failure as well.",
    )(command)


def wants_json(context: click.Context) -> bool:
    """Whether the command that was called has --json of its own: the command of `cacheprep run` may, too."""
    return context.meta.get(_JSON) is True


def _remember_json(context: click.Context, _: click.Parameter, value: bool) -> bool:
    context.meta[_JSON] = value
    return value


def key_of_prefix(layout: Layout, text: str) -> str:
    """The key that a user means: a whole one, or as much of the front of one as fits one cache only.

    Raises:
        Failure: InvalidRequest if none fits, or several do.
    """
    found = keys_of_prefix(layout, text)
    if len(found) == 1:
        return found[0]
    if is_key(text):
        return text
    problem = f"fits {len(found)} caches" if found else "fits no cache"
    raise Failure(
        Reason.INVALID_REQUEST,
        f"key {text!r}: {problem} of {layout.root}; `cacheprep ls --to {layout.root}` lists them",
    )


def keys_of_prefix(layout: Layout, text: str) -> list[str]:
    """The keys of all caches that begin so, published or not.

    Raises:
        Failure: InvalidRequest if no key can.
    """
    check_key_prefix(text)
    return sorted({key for key in (*keys(layout.caches), *keys(layout.partials)) if key.startswith(text)})

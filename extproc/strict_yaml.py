"""YAML read strictly: plain values and the line each stands on, or one error with line and column.

Refused, because each has silently changed what somebody's file meant: a key given twice (YAML keeps the
last), anchors, aliases and merge keys (they also make a short file expand to gigabytes), tags, keys that are
not text (`on:` is the truth value True in YAML 1.1), nesting deeper than `MAX_DEPTH`, and control characters
and halves of surrogate pairs (terminals obey the former, no encoder takes the latter).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, NoReturn

import yaml

MAX_DEPTH = 32
"""Levels of nesting. The composer recurses: without a bound a file of brackets ends in RecursionError."""

Path = tuple[str | int, ...]
"""Where a value stands: keys and list indices from the top, `("pools", 0, "name")`."""

_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp")
)

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Document(NamedTuple):
    """One parsed file.

    `value` is made of dict, list, str, int, float, bool, None and datetime.date; an empty file is None.
    `lines` maps the path of every value to its line, from 1; a mapping's value is on the line of its key.
    """

    value: Any
    lines: dict[Path, int]


class YamlError(Exception):
    """The text is not YAML that is accepted here. `line` and `column` count from 1; None: the whole file."""

    def __init__(self, problem: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line
        self.column = column


def read(text: str) -> Document:
    """Parse one YAML document.

    Raises YamlError for bad syntax and for everything the module refuses.
    """
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return Document(None, {})
        lines: dict[Path, int] = {(): node.start_mark.line + 1}
        return Document(_plain(loader, node, (), lines), lines)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        raise YamlError(
            f"the character {chr(error.character)!r} is not allowed in YAML"
            if isinstance(error.character, int)
            else str(error.reason),
            before.count("\n") + 1,
            len(before) - (before.rfind("\n") + 1) + 1,
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(
            f"not valid YAML: {said}{_hint(said, text, mark)}",
            mark.line + 1 if mark else None,
            mark.column + 1 if mark else None,
        ) from None
    except (ValueError, OverflowError):
        # PyYAML's own slip on "\\U00110000" and beyond.
        mark = None if loader is None else loader.get_mark()
        raise YamlError(
            "not valid YAML: an escape (\\U) stands for no character",
            mark.line + 1 if mark else None,
            mark.column + 1 if mark else None,
        ) from None
    finally:
        if loader is not None:
            loader.dispose()


class _Loader(yaml.SafeLoader):
    """SafeLoader without aliases and with a bound on depth.

    The loader written in C is five times as fast but would end the process where this one raises.
    """

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            _refuse(
                "anchors (&) and aliases (*) are not accepted: write the value out, or put it in quotes",
                event.start_mark,
            )
        if self._depth >= MAX_DEPTH:
            _refuse(f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _refuse(problem: str, mark: yaml.Mark) -> NoReturn:
    raise YamlError(problem, mark.line + 1, mark.column + 1)


def _plain(loader: _Loader, node: yaml.Node, path: Path, lines: dict[Path, int]) -> Any:
    """`node` as plain values; notes the line of everything below it in `lines`."""
    if isinstance(node, yaml.MappingNode):
        if node.tag not in _PLAIN_TAGS:
            _refuse(f"the tag {node.tag} is not accepted", node.start_mark)
        return _mapping(loader, node, path, lines)
    if isinstance(node, yaml.SequenceNode):
        if node.tag not in _PLAIN_TAGS:
            _refuse(f"the tag {node.tag} is not accepted", node.start_mark)
        values = []
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            values.append(_plain(loader, item, (*path, index), lines))
        return values
    if node.tag not in _PLAIN_TAGS:
        _refuse(f"the tag {node.tag} is not accepted", node.start_mark)
    _refuse_unprintable(node)
    try:
        return loader.construct_object(node)
    except (ValueError, OverflowError, LookupError, AttributeError) as error:
        # 2024-13-45; more digits than int() takes; and PyYAML's own slips on `!!bool maybe` or `!!int ""`.
        raise YamlError(
            f"{node.value[:40]!r} cannot be read: {error}",
            node.start_mark.line + 1,
            node.start_mark.column + 1,
        ) from None


def _mapping(loader: _Loader, node: yaml.MappingNode, path: Path, lines: dict[Path, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value if key_node.tag == "tag:yaml.org,2002:str" else None
        if key_node.tag == "tag:yaml.org,2002:merge":
            _refuse("merge keys (<<) are not accepted: write the keys out", key_node.start_mark)
        if not isinstance(key, str):
            shown = repr(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
            _refuse(f"a key must be text, this is {shown}: put it in quotes", key_node.start_mark)
        _refuse_unprintable(key_node)
        line = key_node.start_mark.line + 1
        if key in found:
            _refuse(f"{key!r} is given twice, first on line {lines[(*path, key)]}", key_node.start_mark)
        lines[(*path, key)] = line
        found[key] = _plain(loader, value_node, (*path, key), lines)
    return found


def _refuse_unprintable(node: yaml.Node) -> None:
    found = _UNPRINTABLE.search(node.value)
    if found is not None:
        _refuse(f"the character {found[0]!r} is not accepted in a text", node.start_mark)


def _hint(said: str, text: str, mark: yaml.Mark | None) -> str:
    """What the author most likely meant, for the mistakes this project's files invite."""
    if mark is None:
        return ""
    rows = text.splitlines()
    row = rows[mark.line] if mark.line < len(rows) else ""
    if "\\t" in said or "'\t'" in said:
        return " (indent with spaces)"
    if ": [" in row and "]:" in row:
        return ' (an IPv6 address needs quotes: "[::1]:9002")'
    return "" if ": *" not in row else ' (a pattern that begins with * needs quotes: "*")'

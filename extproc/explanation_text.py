"""An explanation as text for people. Names that a body may hold are shown without control characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from textwrap import fill

from extproc.explanation import Block, Endpoint, Explanation, Pool, Prompt, Scope
from extproc.routing.sent import TOKEN_BYTES

MOST_ROWS = 16
"""Of a longer table some rows are left out. The JSON holds all."""
LINE_CHARACTERS = 110
"""At which sentences are broken."""
TEXT_CHARACTERS = 60
"""Of a segment's text. The JSON holds all of it."""


def text(explanation: Explanation) -> str:
    """The explanation in lines, without a newline at the end."""
    parts = [_head(explanation)]
    if explanation.prompt is not None:
        parts += [_content(explanation.prompt), _blocks(explanation.prompt.blocks)]
    if explanation.pool is not None:
        parts.append(_pool(explanation.pool))
    parts += [_said("why", explanation.why), _said("note", explanation.notes)]
    return "\n\n".join(part for part in parts if part)


# --- The prompt ---


def _head(explanation: Explanation) -> str:
    prompt = explanation.prompt
    size = f"{explanation.bytes:,} bytes"
    if prompt is None:
        return f"request  {size}, not understood: it has no block keys and is routed by load"
    return f"request  {prompt.api}, {size}\nscope    {_scope(prompt.scope)}"


def _scope(scope: Scope) -> str:
    said = [
        f"model {_plain(scope.model)}" if scope.model else "no model",
        f"adapter {_plain(scope.adapter)}" if scope.adapter else "no adapter",
        "a salt" if scope.salt else "no salt",
        f"tools {scope.tools}" if scope.tools else "no tools",
    ]
    return ", ".join(said) + (" (the body was cut: not all may have been seen)" if scope.partial else "")


def _content(prompt: Prompt) -> str:
    count, total = len(prompt.content), sum(one.bytes for one in prompt.content)
    head = f"content  {count} segments, {total:,} bytes, taken for {total // TOKEN_BYTES:,} tokens"
    rows = [
        (
            str(number),
            _plain(one.kind),
            f"{one.bytes:,}",
            "" if one.closed else "cut",
            "" if one.text is None else _plain(one.text, TEXT_CHARACTERS),
        )
        for number, one in enumerate(prompt.content, 1)
    ]
    half = MOST_ROWS // 2
    return _table(
        head,
        ("segment", "kind", "bytes", "", ""),
        "><><<",
        rows,
        (*range(half), *range(count - half, count)),
    )


def _blocks(blocks: Sequence[Block]) -> str:
    remembered = any(one.sent_to is not None for one in blocks)
    columns = ("block", "key", "ends at byte", "tokens", "segment", "sent to" if remembered else "", "")
    rows = [
        (
            str(number),
            one.key,
            f"{one.end:,}",
            f"{one.tokens:,}",
            str(one.segment),
            "" if one.sent_to is None else str(one.sent_to),
            "shared by many" if one.shared else "",
        )
        for number, one in enumerate(blocks, 1)
    ]
    return _table(f"blocks   {len(rows)}", columns, "><>>>><", rows, _landmarks(blocks))


def _landmarks(blocks: Sequence[Block]) -> list[int]:
    """The first and last block, and those after which something changes; what matters most first."""
    pairs = list(enumerate(pairwise(blocks)))
    known = [at for at, (one, after) in pairs if (one.sent_to, one.shared) != (after.sent_to, after.shared)]
    ends = [at for at, (one, after) in reversed(pairs) if one.segment != after.segment]
    return [0, *known, len(blocks) - 1, *ends]


# --- The pool ---


def _pool(pool: Pool) -> str:
    head = f"pool     {pool.name}: {pool.strategy}"
    if pool.prefix_length is not None:
        head += f" by the first {pool.prefix_length:,} characters"
    if pool.bound is not None:
        head += f", full at {pool.bound:.4g} requests in flight"
    if pool.tokens is not None:
        shared = f"first {pool.shared_tokens:,} are those" if pool.shared_tokens else "start is not that"
        head += f"\nprompt   {pool.tokens:,} tokens; its {shared} of many requests"
    in_order = sorted(pool.endpoints, key=_rank)
    optional: dict[str, Sequence[float | None]] = {
        "HRW": [one.place for one in in_order],
        "cached": [one.cached for one in in_order],
        "to compute": [one.to_compute for one in in_order],
        "growth": [one.growth for one in in_order],
    }
    shown = {name: cells for name, cells in optional.items() if any(cell is not None for cell in cells)}
    rows = [
        (
            one.address,
            f"{one.in_flight:,}",
            f"{one.waiting:,}",
            *(_number(cells[at]) for cells in shown.values()),
            _choice(one),
            _state(one),
        )
        for at, one in enumerate(in_order)
    ]
    columns = ("endpoint", "in flight", "waiting", *shown, "choice", "")
    return _table(head, columns, "<>>" + ">" * len(shown) + "<<", rows)


def _rank(one: Endpoint) -> tuple[float, float, float, int]:
    """The choice and where to retry come first, then what would come next."""
    last = float("inf")
    place = last if one.place is None else one.place
    return (last if one.choice is None else one.choice, place, one.growth or 0.0, one.in_flight)


def _choice(one: Endpoint) -> str:
    if one.choice is None:
        return ""
    return "first" if one.choice == 1 else f"retry {one.choice - 1}"


def _state(one: Endpoint) -> str:
    said = [
        "" if one.eligible else "kept out: it did not serve",
        "suspect" if one.suspect and one.eligible else "",
        "full" if one.full else "",
        f"eased in at {one.share:.0%}" if one.share < 1.0 else "",
    ]
    return ", ".join(word for word in said if word)


# --- Lines ---


def _said(word: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    return fill(
        " ".join(sentences),
        LINE_CHARACTERS,
        initial_indent=f"{word:<9}",
        subsequent_indent=" " * 9,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(
    head: str,
    columns: Sequence[str],
    align: str,
    rows: Sequence[Sequence[str]],
    wanted: Iterable[int] = range(MOST_ROWS),
) -> str:
    """A table under its title; of a long one only `wanted` rows are shown, if these are many the first."""
    if not rows:
        return head
    kept: Sequence[int] = range(len(rows))
    if len(rows) > MOST_ROWS:
        kept = sorted(list(dict.fromkeys(wanted))[:MOST_ROWS])
    shown = [columns, *(rows[at] for at in kept)]
    widths = [max(map(len, cells)) for cells in zip(*shown, strict=True)]
    lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True))
        for row in shown
    ]
    if len(kept) < len(rows):
        lines.append(f"({len(rows) - len(kept):,} more are left out here: --json has all)")
    return "\n".join([head, *(f"  {line.rstrip()}" for line in lines)])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _plain(value: str, most: int = 200) -> str:
    """The value in one line, without what a terminal would act on, and not too long."""
    shown = "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in value[:most]
    )
    return shown if len(value) <= most else f"{shown}… ({len(value):,} characters)"

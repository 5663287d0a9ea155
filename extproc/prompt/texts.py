"""Content without roles: text, token ids, or a list of either, as completions and embeddings take it.

Text enters with a tag that says whose it is, token ids as `tokens`, so that the ids 1, 2, 3 and the text
"1, 2, 3" differ. A list is one chain in its order, and a list of one is that one. Token ids end at the first
value that is no 64-bit integer. Of a list of ids that the cut may have hit, the last is left out: 34 may be
345.
"""

import struct
from typing import Any

from extproc.prompt.canonical import digest
from extproc.prompt.content import MAX_SEGMENTS, TEXT, TOKENS, Segment

PROMPT = TEXT + b"/prompt"
"""Tag of a text that an engine completes as it stands, whatever API brings it."""

INPUT = TEXT + b"/input"
"""Tag of a text that is embedded, classified or scored."""


def add(chain: list[Segment], tag: bytes, value: object, cut: bool) -> None:
    """Add a text, a list of token ids, or a list of any of these, up to MAX_SEGMENTS segments.

    `tag` is the tag of texts. An object among inputs enters by its text if it has one, else by its digest
    (image, audio). What is none of these adds nothing. `cut` says that the value may go on after its end.
    """
    if isinstance(value, list) and value and isinstance(value[0], int):
        chain.append(_tokens(value, cut))
    elif isinstance(value, list):
        last = len(value) - 1
        for index, item in enumerate(value):
            if len(chain) >= MAX_SEGMENTS:
                break
            _add_one(chain, tag, item, cut and index == last)
    else:
        _add_one(chain, tag, value, cut)


def _add_one(chain: list[Segment], tag: bytes, item: object, cut: bool) -> None:
    if isinstance(item, str):
        chain.append(Segment(tag, item.encode(), not cut))
    elif isinstance(item, list) and item and not isinstance(item[0], int):
        add(chain, tag, item, cut)
    elif isinstance(item, list):
        chain.append(_tokens(item, cut))
    elif isinstance(item, dict) and item and tag == INPUT and not cut:
        text = item.get("text")
        if isinstance(text, str):
            chain.append(Segment(tag, text.encode(), True))
        else:
            chain.append(Segment(b"part/", digest(item), True))


def _tokens(ids: list[Any], cut: bool) -> Segment:
    if cut:
        ids = ids[:-1]
    try:
        data = struct.pack(f"<{len(ids)}q", *ids)
    except struct.error:
        data = b"".join(map(struct.Struct("<q").pack, _leading_ids(ids)))
    return Segment(TOKENS, data, not cut)


def _leading_ids(ids: list[Any]) -> list[int]:
    for index, token in enumerate(ids):
        if not isinstance(token, int) or not -(1 << 63) <= token < 1 << 63:
            return ids[:index]
    return ids


def first_of(fields: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """Return which of these fields comes first in a body, so that a cut body has the same one; or None."""
    return next((name for name in fields if name in names), None)

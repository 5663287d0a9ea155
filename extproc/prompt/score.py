"""Score and rerank: one text against many others.

Source: vLLM's documentation of pooling models (`text_1`, `text_2`, newer `queries`, `documents`, `items`);
the rerank API of Jina and Cohere (`query`, `documents`); text-embeddings-inference (`query`, `texts`).

An engine reads each pair from its first text, so that comes first whatever the order of the body's fields,
and the others follow. In these bodies `documents` are content and no part of the scope.
"""

from typing import Any

from extproc.prompt import texts
from extproc.prompt.body import last_key
from extproc.prompt.content import Api, Segment

_FIRST = ("query", "queries", "text_1", "data_1")
_SECOND = ("documents", "items", "texts", "text_2", "data_2")


def _recognise(fields: dict[str, Any]) -> bool:
    return texts.first_of(fields, _FIRST) is not None and texts.first_of(fields, _SECOND) is not None


def _content(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    chain: list[Segment] = []
    last = last_key(fields) if truncated else None
    first, second = texts.first_of(fields, _FIRST), texts.first_of(fields, _SECOND)
    if first is not None:
        texts.add(chain, texts.INPUT, fields[first], first == last)
    if second is not None and not (first == last and first is not None):
        texts.add(chain, texts.INPUT, fields[second], second == last)
    return chain


API = Api(
    "score",
    ("/score", "/rerank"),
    _recognise,
    _content,
    opening=_FIRST,
    template=("chat_template", "chat_template_kwargs"),
)
"""vLLM's /score and /rerank, with and without a version before."""

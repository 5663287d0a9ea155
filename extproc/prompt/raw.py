"""Bodies of APIs that no file here reads: keyed by their bytes, where those are text.

Binary bodies (audio, images, compressed JSON) share no prefix worth a key, so they are routed by load.
"""

import codecs

from extproc.prompt.content import RAW, Prompt, Segment
from extproc.prompt.scope import Scope

NAME = "raw"
"""The name of this API in metrics and logs."""


def read(body: bytes, scope: Scope, closed: bool) -> Prompt | None:
    """Return the body as one segment, or None where it is blank or not UTF-8.

    `closed` says that the body is whole; whether it is or not, its last character may be cut.
    """
    if not body or body.isspace():
        return None
    try:
        codecs.utf_8_decode(body, "strict", False)
    except UnicodeDecodeError:
        return None
    return Prompt(NAME, scope, [Segment(RAW, body, closed)])

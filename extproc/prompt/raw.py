"""Bodies of APIs that no file here reads: keyed by their bytes, where those are text.

Binary bodies (audio, images, compressed JSON) share no prefix worth a key, so they are routed by load. So are
multipart forms (audio to transcribe, files): they begin with a boundary that is another in every request.
"""

import codecs

from extproc.prompt.content import RAW, Prompt, Segment
from extproc.prompt.scope import Scope

NAME = "raw"
"""The name of this API in metrics and logs."""


_FORM = b"content-disposition: form-data"
_FORM_BYTES = 512
"""How far the first header of a form's first part is looked for: a boundary has at most 70 characters."""


def read(body: bytes, scope: Scope, closed: bool) -> Prompt | None:
    """Return the body as one segment, or None where it is blank, a form, or not UTF-8.

    `closed` says that the body is whole; whether it is or not, its last character may be cut.
    """
    if not body or body.isspace():
        return None
    if body.startswith(b"--") and _FORM in body[:_FORM_BYTES].lower():
        return None
    try:
        codecs.utf_8_decode(body, "strict", False)
    except UnicodeDecodeError:
        return None
    return Prompt(NAME, scope, [Segment(RAW, body, closed)])

"""Manifests that name the files of an http(s) source. Pure."""

from __future__ import annotations

import re

from cacheprep.failures import Failure, Reason
from cacheprep.listing import Digest, File, Listing

UNKNOWN = 0
"""Size of a file whose manifest names none; `sha256sum` does not."""
_LINE = re.compile(r"(?P<digest>[0-9a-fA-F]{64}) [ *](?P<name>.+)")
_TAGGED = re.compile(r"SHA256 \((?P<name>.+)\) = (?P<digest>[0-9a-fA-F]{64})")


def read_manifest(content: bytes, what: str) -> list[File]:
    """The files of a manifest in either form; size `UNKNOWN` where it names none, and no versions.

    Raises Failure(InvalidRequest) naming the line that is neither.
    """
    if content.lstrip()[:1] == b"{":
        return [File(file.name, file.size, file.digests) for file in Listing.from_json(content).files]
    files = []
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise Failure(Reason.INVALID_REQUEST, f"{what}: is not UTF-8") from error
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line) or _TAGGED.fullmatch(line)
        if match is None:
            raise Failure(
                Reason.INVALID_REQUEST,
                f"{what}: line {number} is {line!a:.100}; write lines as sha256sum prints them, or a listing"
                " of `cacheprep sources resolve -o`",
            )
        name = match["name"].removeprefix("./")
        files.append(File(name, UNKNOWN, (Digest("sha256", match["digest"].lower()),)))
    return files

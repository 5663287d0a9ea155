"""The manifest of a published cache: its listing, and the sha256 of every file. Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from cacheprep.failures import Failure, Reason
from cacheprep.listing import Listing, Verification, proof
from cacheprep.store.layout import key_of

_FORMAT = 1
_HEX = frozenset("0123456789abcdef")


class Manifest(NamedTuple):
    """What a cache holds; `sha256` has one hex digest per file of the listing, in its order."""

    listing: Listing
    sha256: tuple[str, ...]

    @property
    def key(self) -> str:
        """The cache key."""
        return key_of(self.listing.digest())

    @property
    def verification(self) -> Verification:
        """What the hashes rest on."""
        return self.listing.verification

    def to_json(self) -> bytes:
        """As it is written: one line per file, so that two can be compared by diff."""
        content = json.loads(self.listing.to_json())
        files = [
            {"name": file.name, "size": file.size, "sha256": sha256, "verified_against": _against(file_proof)}
            for file, sha256 in zip(self.listing.files, self.sha256, strict=True)
            for file_proof in [proof(file)]
        ]
        head = {
            "format": _FORMAT,
            "key": self.key,
            "verification": self.verification.value,
            "listing": content,
        }
        lines = ",\n".join(json.dumps(file, ensure_ascii=False) for file in files)
        return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "files": [\n{lines}\n]}}\n'.encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Read what `to_json` wrote.

        Raises:
            Failure: IntegrityMismatch for anything else.
        """
        try:
            content = json.loads(text)
            listing = Listing.from_json(json.dumps(content["listing"]).encode())
            files = content["files"]
            sha256 = tuple(_sha256(file) for file in files)
            names = [(file["name"], file["size"]) for file in files]
            if content["format"] != _FORMAT or names != [(file.name, file.size) for file in listing.files]:
                raise ValueError("its files are not those of its listing")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Failure) as error:
            raise Failure(
                Reason.INTEGRITY_MISMATCH, f"manifest: is damaged ({error}); fetch again"
            ) from error
        return cls(listing, sha256)


def _sha256(file: dict[str, Any]) -> str:
    value = file["sha256"]
    if not isinstance(value, str) or len(value) != 64 or not _HEX.issuperset(value):
        raise ValueError(f"sha256 of {file['name']!r:.100}")
    return value


def _against(found: object) -> str | None:
    algorithm: str | None = getattr(found, "algorithm", None)
    return algorithm

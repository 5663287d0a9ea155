"""`cacheprep sources`."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import closing, suppress

import click

from cacheprep.commands.options import json_option
from cacheprep.commands.output import print_json, print_table, size
from cacheprep.commands.source_options import source_options
from cacheprep.failures import Failure, Reason
from cacheprep.listing import File, Listing, proof
from cacheprep.sources import SourceOptions, source_of
from cacheprep.store.layout import key_of

_DIGEST_DIGITS = 16


@click.group("sources")
def command() -> None:
    """Ask a source what it has."""


@command.command("resolve", short_help="List the files of SOURCE; nothing is fetched.")
@click.argument("source")
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="Save the listing here, for `cacheprep fetch --listing` on another machine; - for standard output.",
)
@source_options
@json_option
def resolve(source: str, output: str | None, options: SourceOptions, as_json: bool) -> None:
    """List the files of SOURCE: names, sizes, and the digests that it knows. Nothing is fetched.

    The listing is fixed: who fetches it gets exactly these files, or SourceChanged. With --json: an object
    with key, source, revision, verification, bytes and files.
    """
    with closing(source_of(source, options)) as opened:
        listing = opened.resolve()
    if output == "-":
        click.echo(listing.to_json())
        return
    if output is not None:
        _write(output, listing.to_json())
    if as_json:
        print_json(_object(listing))
        return
    if output is None:
        print_table(("NAME", "SIZE", "DIGEST"), [_row(file) for file in listing.files])
        click.echo()
    said = f"{len(listing.files)} files, {size(listing.total)}, {listing.verification}"
    click.echo(f"{listing.source}: {said}, key {key_of(listing.digest())}")


def _row(file: File) -> tuple[str, str, str]:
    digest = proof(file) or next(iter(file.digests), None)
    said = "-" if digest is None else f"{digest.algorithm} {digest.value[:_DIGEST_DIGITS]}"
    return file.name, size(file.size), said


def _object(listing: Listing) -> dict[str, object]:
    content = json.loads(listing.to_json())
    del content["format"]
    return {
        "key": key_of(listing.digest()),
        "source": content.pop("source"),
        "revision": content.pop("revision"),
        "verification": listing.verification.value,
        "bytes": listing.total,
        **content,
    }


def _write(path: str, content: bytes) -> None:
    """All of it or nothing at `path`, whatever happens."""
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".listing-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise Failure(Reason.INVALID_REQUEST, f"--output {path!a}: {error.strerror}") from error

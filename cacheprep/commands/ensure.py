"""`cacheprep ensure`, when the cache is not ready or the request not seen before; `warm.py` answers the
rest."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import click

from cacheprep.commands.fetch import Wanted, fetch_options, obtain
from cacheprep.commands.options import key_of_prefix, keys_of_prefix
from cacheprep.commands.output import print_json
from cacheprep.failures import Failure, Reason
from cacheprep.store.layout import check_key_prefix
from cacheprep.store.root import open_to_read
from cacheprep.store.use import ready, touch


@click.command("ensure")
@click.option(
    "--key",
    metavar="KEY",
    help="The cache that is wanted, or the front of its key; SOURCE must have it if it is not ready.",
)
@click.option(
    "--link",
    metavar="PATH",
    help="Leave a relative symbolic link to the directory here, in the place of one that is there.",
)
@fetch_options
def command(wanted: Wanted) -> None:
    """Have a cache ready, and print the directory to load: what an init container runs.

    A cache is found by KEY, by --listing, or by the same arguments in the same directory as before; no
    source is asked then, also if it has changed since (`fetch` would list it anew). If it is not ready,
    it is fetched as `fetch` does it; two processes on one node fetch it once.
    """
    path = _found(wanted.root, wanted.key, wanted.as_json) if wanted.key is not None else None
    if path is None:
        path = _fetched(wanted)
    if wanted.link is not None:
        _link(wanted.link, path)


def _fetched(wanted: Wanted) -> str:
    if wanted.source is None and wanted.listing is None:
        said = "SOURCE: is missing" if wanted.key is None else f"--key {wanted.key}: no cache of it is ready"
        raise Failure(Reason.INVALID_REQUEST, f"{said}; name a SOURCE or a --listing to fetch")
    return obtain(wanted)


def _link(link: str, path: str) -> None:
    # Relative, so that it holds wherever the volume of both is mounted.
    target = os.path.relpath(path, os.path.dirname(os.path.abspath(link)))
    aside = f"{link}.{os.getpid()}"
    try:
        if os.path.lexists(link) and not os.path.islink(link):
            raise Failure(Reason.INVALID_REQUEST, f"--link {link}: is there, and no link; take another path")
        os.symlink(target, aside)
        os.replace(aside, link)
    except OSError as error:
        with suppress(OSError):
            os.unlink(aside)
        raise Failure(Reason.INVALID_REQUEST, f"--link {link}: {error.strerror}") from error


def _found(root: str, text: str, as_json: bool) -> str | None:
    """The directory of a cache that is ready, printed; None if it is not."""
    check_key_prefix(text)
    try:
        layout = open_to_read(root)
    except Failure:
        return None
    fitting = keys_of_prefix(layout, text)
    key = key_of_prefix(layout, text) if fitting else ""
    if not key or not ready(layout, key):
        return None
    touch(layout, key)
    if as_json:
        result: dict[str, Any] = {"key": key, "path": layout.model(key), "how": "found", "ready": True}
        print_json(result)
    else:
        click.echo(layout.model(key))
    return layout.model(key)

"""`cacheprep rm`."""

from __future__ import annotations

import click

from cacheprep.commands.options import json_option, key_of_prefix, root_option
from cacheprep.commands.output import print_json, say
from cacheprep.failures import Failure, Reason
from cacheprep.store.remove import remove
from cacheprep.store.root import open_to_read, os_failure


@click.command("rm")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@root_option
@json_option
def command(keys: tuple[str, ...], root: str, as_json: bool) -> None:
    """Remove caches by KEY, or the front of one; never one that is in use or being fetched.

    What is left of a cache that was not fetched to its end goes as well. All are tried; the exit code is that
    of the first that could not be removed.
    """
    layout = open_to_read(root)
    removed: list[str] = []
    failures: list[Failure] = []
    for text in keys:
        try:
            key = key_of_prefix(layout, text)
            if not remove(layout, key):
                raise Failure(Reason.INVALID_REQUEST, f"key {key}: there is no such cache")
            removed.append(key)
            if not as_json:
                click.echo(f"removed {key}")
        except Failure as failure:
            failures.append(failure)
        except OSError as error:
            failures.append(os_failure(error, f"cache {text}"))
    if as_json:
        print_json({"removed": removed})
    for other in failures[1:]:
        say(str(other))
    if failures:
        raise failures[0]

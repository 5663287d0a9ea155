"""`cacheprep run`."""

from __future__ import annotations

import os

import click

from cacheprep.commands.options import key_of_prefix, root_option
from cacheprep.failures import Failure, Reason
from cacheprep.store.root import open_to_read
from cacheprep.store.use import hold

VARIABLE = "CACHEPREP_MODEL"


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.argument("key", metavar="KEY")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
@root_option
def command(key: str, arguments: tuple[str, ...], root: str) -> None:
    """Run CMD while the cache KEY is in use, so that nothing removes it.

    CMD replaces this process, and holds the cache until it and all that it started and that kept the lock
    have ended. The environment variable CACHEPREP_MODEL has the directory to load; {} in an argument
    stands for it.

        cacheprep run 3f2a --to /nvme/models -- vllm serve {}
    """
    layout = open_to_read(root)
    found = key_of_prefix(layout, key)
    held = hold(layout, found)
    model = layout.model(found)
    os.set_inheritable(held.fd, True)
    words = [argument.replace("{}", model) for argument in arguments]
    try:
        os.execvpe(words[0], words, {**os.environ, VARIABLE: model})  # noqa: S606 - the user's own command
    except OSError as error:
        held.release()
        raise Failure(Reason.INVALID_REQUEST, f"command {words[0]!r}: {error.strerror}") from error

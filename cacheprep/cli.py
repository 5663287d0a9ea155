"""The `cacheprep` command."""

from __future__ import annotations

import click

from cacheprep import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cacheprep")
def main() -> None:
    """Put model weights on node NVMe before the pods that need them.

    This release holds the router only (see `extproc --help`); no cacheprep command is in it yet.
    """

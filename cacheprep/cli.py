"""The `cacheprep` command: a warm `ensure` is answered here, all else goes to the commands.

Imports nothing that a warm `ensure` does not need: it stands before every start of a pod, and loading
click alone takes longer than it does.
"""

from __future__ import annotations

import os
import sys

GARBAGE = 50_000
"""Objects that may be made before garbage is looked for."""


def main() -> None:
    """Run the command line of this process; ends it with a documented exit code."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["ensure"]:
        from cacheprep.warm import warm

        if (path := warm(arguments[1:])) is not None:
            sys.stdout.write(f"{path}\n")
            sys.stdout.flush()
            # There is nothing to clean up, and cleaning up takes a while.
            os._exit(0)
    import gc

    # What modules and SDKs make when they load stays; looking for garbage in it takes much of a short one.
    gc.set_threshold(GARBAGE)

    from cacheprep.commands import cacheprep

    cacheprep(arguments, prog_name="cacheprep")

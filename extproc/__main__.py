"""`python -m extproc`: the same as the `extproc` command."""

from extproc.cli import main

main(prog_name="extproc")

"""`python -m cacheprep`."""

from cacheprep.cli import main

main()

"""`python -m cacheprep.api [DIRECTORY]`: writes the CustomResourceDefinitions."""

from __future__ import annotations

import sys
from pathlib import Path

from cacheprep.api.definitions import HEAD, files

_DIRECTORY = Path(__file__).parents[2] / "manifests" / "operator" / "crds"


def main(directory: Path) -> None:
    """Write the files of `definitions.files` into a directory, and remove those of kinds that are no more."""
    directory.mkdir(parents=True, exist_ok=True)
    made = files()
    for name, content in made.items():
        (directory / name).write_text(content)
    for old in directory.glob("*.yaml"):
        if old.name not in made and old.read_text().startswith(HEAD):
            old.unlink()


if __name__ == "__main__":
    if len(sys.argv) > 2 or any(word.startswith("-") for word in sys.argv[1:]):
        sys.exit("usage: python -m cacheprep.api [DIRECTORY]")
    main(Path(sys.argv[1]) if len(sys.argv) == 2 else _DIRECTORY)

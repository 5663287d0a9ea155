"""What the pages of docs/ say to write and to run."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from tests.apiserver.attachment.kubectl import ROOT


def kustomization(page: str, directory: Path) -> None:
    """Leave in `directory` the kustomization that a page gives for other names, and the router's settings.

    These are the page's, else those of manifests/, which it says to start from.
    """
    manifests = os.path.relpath(ROOT / "manifests", directory)
    (written,) = _blocks(page, "kustomization.yaml")
    (directory / "kustomization.yaml").write_text(written.replace("[manifests/", f"[{manifests}/"))
    settings = _blocks(page, "extproc.yaml") or [(ROOT / "manifests/base/router/extproc.yaml").read_text()]
    (directory / "extproc.yaml").write_text(settings[0])


def command(page: str, start: str) -> list[str]:
    """The words of the only command of a page that starts so."""
    (written,) = re.findall(rf"^{re.escape(start)}(?:[^\n]*\\\n)*[^\n]*", _text(page), re.M)
    return shlex.split(written.replace("\\\n", " "))


def _blocks(page: str, name: str) -> list[str]:
    """The blocks of YAML that a page gives as the file of this name."""
    return re.findall(rf"```yaml\n# {re.escape(name)}\n(.*?)```", _text(page), re.S)


def _text(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text()

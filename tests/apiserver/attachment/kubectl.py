"""kubectl as users run it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]


class Kubectl:
    """kubectl with a kubeconfig. What it knows of the API server is kept in `directory`."""

    def __init__(self, binary: Path, kubeconfig: Path, directory: Path) -> None:
        self.kubeconfig = kubeconfig
        self._command = [str(binary), f"--kubeconfig={kubeconfig}", f"--cache-dir={directory}"]

    def __call__(self, *words: str, stdin: str | None = None) -> str:
        """Its output. Fails with what it says if it does not succeed, and so does a warning."""
        done = self.attempt(*words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def attempt(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run it, whatever comes of it."""
        return subprocess.run(
            [*self._command, "--warnings-as-errors", *words],
            input=stdin,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def namespace(self, name: str) -> None:
        """Create it, unless it is there."""
        if f"namespace/{name}" not in self("get", "namespaces", "-o", "name").split():
            self("create", "namespace", name)

    def objects(self, directory: Path) -> list[dict[str, Any]]:
        """What a kustomization is made of."""
        return list(yaml.safe_load_all(self("kustomize", str(directory))))

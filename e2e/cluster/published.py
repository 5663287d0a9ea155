"""What is pulled instead of built, if KIND_NODE_IMAGE says that image registries can be reached."""

from __future__ import annotations

import os

from e2e.cluster import debian
from images import build


def node() -> str | None:
    """KIND_NODE_IMAGE: the reference of a node image, such as `kindest/node:v1.34.4`; None: build one."""
    return os.environ.get("KIND_NODE_IMAGE") or None


def base() -> str:
    """The base of the project's images: the published one where the node's image is a published one too.

    Raises `ClusterError`.
    """
    return build.PUBLISHED if node() else debian.python()

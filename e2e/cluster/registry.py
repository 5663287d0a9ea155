"""An image registry beside the nodes, from which they pull: what image pre-pull is tested with.

`push` puts an image there under the name by which pods then know it: `registry.e2e:5000/NAME`.
"""

from __future__ import annotations

from e2e.cluster import golang, images, kind
from e2e.cluster.command import run, succeeds

CONTAINER = f"{kind.NAME}-registry"
NAME = "registry.e2e:5000"
"""The registry's name in image references. Only containerd's configuration knows it; no name server does."""
PORT = 5000

_CONFIG = """\
version: 0.1
storage: {filesystem: {rootdirectory: /var/lib/registry}}
http: {addr: ":5000"}
"""


def start() -> None:
    """Run the registry on the nodes' network, and tell every node of it. Raises `ClusterError`."""
    if not succeeds("docker", "inspect", CONTAINER):
        image = images.program(golang.program(golang.REGISTRY))
        run(
            *("docker", "create", "--name", CONTAINER, "--network", "kind"),
            *("--publish", f"127.0.0.1::{PORT}", "--volume", "/var/lib/registry"),
            *(image, "serve", "/config.yaml"),
        )
        run("docker", "cp", "-", f"{CONTAINER}:/", stdin=images.archive({"config.yaml": _CONFIG.encode()}))
    run("docker", "start", CONTAINER)
    hosts = f'server = "http://{NAME}"\n\n[host."http://{CONTAINER}:{PORT}"]\n'
    directory = f"/etc/containerd/certs.d/{NAME}"
    for node in kind.NODES:
        run("docker", "exec", node, "mkdir", "-p", directory)
        run("docker", "exec", "-i", node, "tee", f"{directory}/hosts.toml", stdin=hosts)


def stop() -> None:
    """Remove the registry with what it holds."""
    succeeds("docker", "rm", "--force", "--volumes", CONTAINER)


def push(image: str, name: str) -> str:
    """Push an image of the engine as `name` (`model:1`). Returns the reference for pods. Raises
    `ClusterError`."""
    here = run("docker", "port", CONTAINER, f"{PORT}/tcp").split()[0]
    run("docker", "tag", image, f"{here}/{name}")
    run("docker", "push", f"{here}/{name}")
    return f"{NAME}/{name}"

"""An image registry beside the nodes, from which they pull: what image pre-pull is tested with.

`push` puts an image there under the name by which pods then know it: `registry.e2e:5000/NAME`.
"""

from __future__ import annotations

from dataclasses import dataclass

from e2e.cluster import golang, images, kind
from e2e.cluster.command import run, succeeds

PORT = 5000

_STORE = "/var/lib/registry"
_CONFIG = f"""\
version: 0.1
storage: {{filesystem: {{rootdirectory: {_STORE}}}}}
http: {{addr: ":{PORT}"}}
"""


@dataclass(frozen=True)
class Registry:
    """A registry: the container that it runs in, and its name in image references, which only containerd's
    configuration knows; no name server does."""

    container: str
    name: str
    in_memory: bool = False
    """Keep what is pushed in memory, and so only as long as it runs."""


SHARED = Registry(f"{kind.NAME}-registry", f"registry.e2e:{PORT}")
"""That of the cluster."""


def start(registry: Registry = SHARED) -> None:
    """Run a registry on the nodes' network, and tell every node of it. Raises `ClusterError`."""
    container = registry.container
    if not succeeds("docker", "inspect", container):
        image = images.program(golang.program(golang.REGISTRY))
        run(
            *("docker", "create", "--name", container, "--network", "kind"),
            *("--publish", f"127.0.0.1::{PORT}", "--tmpfs" if registry.in_memory else "--volume", _STORE),
            *(image, "serve", "/config.yaml"),
        )
        run("docker", "cp", "-", f"{container}:/", stdin=images.archive({"config.yaml": _CONFIG.encode()}))
    run("docker", "start", container)
    hosts = f'server = "http://{registry.name}"\n\n[host."http://{container}:{PORT}"]\n'
    directory = f"/etc/containerd/certs.d/{registry.name}"
    for node in kind.NODES:
        run("docker", "exec", node, "mkdir", "-p", directory)
        run("docker", "exec", "-i", node, "tee", f"{directory}/hosts.toml", stdin=hosts)


def stop(registry: Registry = SHARED) -> None:
    """Remove a registry with what it holds."""
    succeeds("docker", "rm", "--force", "--volumes", registry.container)


def push(image: str, name: str, registry: Registry = SHARED) -> str:
    """Push an image of the engine as `name` (`model:1`). Returns the reference for pods. Raises
    `ClusterError`."""
    here = run("docker", "port", registry.container, f"{PORT}/tcp").split()[0]
    run("docker", "tag", image, f"{here}/{name}")
    run("docker", "push", f"{here}/{name}")
    return f"{registry.name}/{name}"

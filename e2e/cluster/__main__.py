"""`python -m e2e.cluster up | down | build`: the cluster, from nothing, and away again."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from e2e.cluster import (
    cache,
    debian,
    engine,
    gateway,
    golang,
    hardware,
    images,
    kind,
    network,
    node,
    published,
    registry,
    resource_metrics,
)
from e2e.cluster.command import ClusterError, run
from e2e.cluster.steps import Step, Steps
from images import build as product


def main() -> None:
    """Exit code 1, and what is missing, if it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    parser.add_argument(
        "command",
        choices=("build", "up", "down"),
        help="build: only what Go builds; up: bring the cluster up; down: remove it, and the engine if it was"
        " started for it",
    )
    given = parser.parse_args()
    steps = Steps(partial(print, flush=True))
    try:
        {"build": build, "up": up, "down": down}[given.command](steps)
    except (ClusterError, golang.BuildError) as error:
        sys.exit(f"e2e: {error}")
    steps.say(f"  {'all':<44} {steps.seconds:7.1f} s")


def build(steps: Steps) -> None:
    """Build every Go program that is not there, with a line for each."""
    steps.side_by_side(_lacking())


def up(steps: Steps) -> None:
    """Bring the cluster up, or to what this version of it is."""
    steps.run("Docker engine", engine.start)
    steps.side_by_side([[("Debian and Python base", debian.python)], *_lacking()])
    image = steps.run("node image", node.image)
    loaded = [*steps.run("gateway's images", gateway.built), resource_metrics.image()]
    router = steps.run("image of the router", router_image)
    if not kind.runs():
        mounts = steps.run("disks and boot ids", hardware.mounts)
        steps.run("nodes", partial(kind.create, image, mounts))
    steps.run("pods' network", network.connect)
    steps.run("GPUs", hardware.attach)
    steps.run("registry", registry.start)
    steps.run("images into the nodes", partial(images_into_nodes, loaded, router))
    steps.run("metrics-server", resource_metrics.install)
    steps.run("Envoy Gateway", gateway.install)
    used = int(run("du", "-sxB1", cache.root()).split()[0])
    steps.say(f"\n{cache.root()} holds {used / 1e9:.1f} GB; KUBECONFIG={kind.kubeconfig()}")


def _lacking() -> list[list[Step]]:
    return golang.lacking(node_is_built=published.node() is None)


def router_image() -> str:
    """The router's image."""
    return product.build(product.EXTPROC, published.base())


def images_into_nodes(loaded: list[str], router: str) -> None:
    """The system's images where the system runs; the router's, which has the engines too, everywhere."""
    images.load(loaded, [kind.CONTROL_PLANE])
    images.load([router], kind.NODES)


def down(steps: Steps) -> None:
    """Remove the cluster; the engine too, if it was started for it. What was built stays in the cache."""
    if engine.answers():
        steps.run("registry", registry.stop)
        steps.run("nodes", kind.delete)
    steps.run("disks", hardware.detach)
    steps.run("Docker engine", engine.stop)


if __name__ == "__main__":
    main()

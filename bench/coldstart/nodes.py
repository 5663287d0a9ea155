"""The two nodes: one that is prepared, one that is emptied before each pod."""

from __future__ import annotations

import json
import time
from pathlib import Path

from bench.coldstart.objects import MAY_RUN, NAMESPACE, OURS, ROOT, Workload, keeper
from bench.coldstart.servers import REGISTRY
from e2e.cluster import kind
from e2e.cluster.command import ClusterError, run

WARM, COLD = kind.WORKERS[:2]
"""The prepared one, and the one that has nothing."""
_CTR = ("ctr", "--namespace", "k8s.io")
FILL_SECONDS = 900
GONE_SECONDS = 120.0


def prepare(workloads: list[Workload]) -> None:
    """Have weights and image on the warm node, as the operator does: a Job for each model, a DaemonSet for
    the image. Raises `ClusterError`."""
    kind.apply([one for workload in workloads for one in workload.listed()])
    kind.apply([keeper(workloads, WARM), *(workload.fill(WARM) for workload in workloads)])
    namespace = f"--namespace={NAMESPACE}"
    limit = f"--timeout={FILL_SECONDS}s"
    for kinds in (
        ("wait", "--for=condition=complete", "jobs", "--all"),
        ("rollout", "status", "daemonset"),
    ):
        try:
            kind.kubectl(*kinds, namespace, limit)
        except ClusterError as error:
            said = kind.kubectl("get", "pods", namespace, "--output=wide")
            raise ClusterError(f"{WARM} is not prepared: {error}\n{said}") from error
    ready = [f"{name}={value}" for workload in workloads for name, value in workload.labels().items()]
    kind.kubectl("label", "node", WARM, "--overwrite", *ready)


def admit(node: str) -> None:
    """Let the next pod be put on this node, and on no other."""
    for other in (WARM, COLD):
        kind.kubectl(
            "label", "node", other, f"{MAY_RUN}=true" if other == node else f"{MAY_RUN}-", "--overwrite"
        )


def empty(image: str) -> None:
    """Take weights and image off the cold node, layers included. Raises `ClusterError`."""
    _clear(COLD, image)


def leave() -> None:
    """Take everything off both nodes, and namespaces away, that this run or one before has left there. Raises
    `ClusterError`."""
    ours = ("get", "namespaces", f"--selector={OURS}", "--output=jsonpath={.items[*].metadata.name}")
    for namespace in kind.kubectl(*ours).split():
        # First what runs there: namespaces may take long to go, and nothing waits for that.
        kinds = "deployments,daemonsets,jobs"
        here = ("--all", f"--namespace={namespace}", "--cascade=foreground", "--timeout=120s")
        kind.kubectl("delete", kinds, *here)
        kind.kubectl("delete", "namespace", namespace, "--wait=false")
    for node in (WARM, COLD):
        _clear(node, REGISTRY.name)
        labels = json.loads(kind.kubectl("get", "node", node, "--output=json"))["metadata"]["labels"]
        names = [name for name in labels if name == MAY_RUN or name.partition(".coldstart-")[1]]
        if names:
            kind.kubectl("label", "node", node, *(f"{name}-" for name in names))


def _clear(node: str, prefix: str) -> None:
    inside = ("docker", "exec", node)
    run(*inside, "rm", "-rf", ROOT)
    # The kubelet takes containers that have ended away once a minute; until then they hold layers.
    end = time.monotonic() + GONE_SECONDS
    while any(line.split()[1].startswith(prefix) for line in _lines(*inside, *_CTR, "containers", "list")):
        if time.monotonic() > end:
            raise ClusterError(
                f"{node}: containers of {prefix} are there after {GONE_SECONDS:.0f} s; delete their pods"
            )
        time.sleep(0.5)
    listed = [line.split() for line in _lines(*inside, *_CTR, "images", "list")]
    digests = {fields[2] for fields in listed if fields[0].startswith(prefix)}
    # Three names for one image: its tag, its digest, and its configuration's, by which CRI knows it.
    names = [fields[0] for fields in listed if fields[2] in digests]
    if names:
        run(*inside, *_CTR, "images", "remove", *names)
    # What nothing refers to is collected now, also what only a container or an unfinished pull held.
    lease = run(*inside, *_CTR, "leases", "create").strip()
    run(*inside, *_CTR, "leases", "delete", "--sync", lease)


def _lines(*command: str) -> list[str]:
    """What a command prints below its heading."""
    return run(*command).splitlines()[1:]


def processors() -> tuple[int, int]:
    """What this machine's processors have done since it began, in ticks: idle or waiting for disks, and all
    (proc_stat(5))."""
    with Path("/proc/stat").open() as file:
        user, nice, system, idle, waiting, *others = map(int, file.readline().split()[1:9])
    return idle + waiting, user + nice + system + idle + waiting + sum(others)


def drop_caches() -> None:
    """Have the kernel forget every page of files, and directories: what is read then comes from disks."""
    run("sync")
    Path("/proc/sys/vm/drop_caches").write_text("3\n")

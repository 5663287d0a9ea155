"""`cacheprep controller`."""

from __future__ import annotations

import secrets
import socket
from dataclasses import replace

import click

from cacheprep.api.names import DEFAULT_ROOT
from cacheprep.commands.service import LISTEN, check_root, serve
from cacheprep.failures import Failure, Reason
from cacheprep.plan.settings import Settings
from extproc.pool.discovery.kubernetes import Cluster

_DEFAULTS = Settings()


@click.command("controller")
@click.option(
    "--root",
    "roots",
    multiple=True,
    default=(DEFAULT_ROOT,),
    metavar="PATH",
    help="A directory of nodes where caches may be; repeat for several. hostPath of an object chooses one.",
)
@click.option(
    "--image",
    envvar="CACHEPREP_IMAGE",
    show_envvar=True,
    show_default=f"what --pod runs, else {_DEFAULTS.image}",
    help="Image of cacheprep, for Jobs and init containers.",
)
@click.option(
    "--pod",
    envvar="POD_NAME",
    show_envvar=True,
    help="Name of the pod that this runs in, whose image Jobs and init containers then run as well.",
)
@click.option(
    "--downloads-at-once",
    type=click.IntRange(min=1),
    default=_DEFAULTS.downloads_at_once,
    help="Nodes that read one source at once.",
)
@click.option("--allow-shared-disk", is_flag=True, help="Let Jobs fill roots on the disk of the system, too.")
@click.option("--listen", default=LISTEN, metavar="HOST:PORT", help="Answer /healthz, /readyz and /metrics.")
def command(
    roots: tuple[str, ...],
    image: str | None,
    pod: str | None,
    downloads_at_once: int,
    allow_shared_disk: bool,
    listen: str,
) -> None:
    """Keep the model caches of a cluster as its objects ask for, until SIGTERM.

    Of several replicas one acts: the one that holds the Lease cacheprep-controller. Whatever it was at when
    it ended, the next one goes on from what is. Ends with Canceled when it has lost the lease.
    """
    from cacheprep.controller.controller import control, image_of
    from cacheprep.controller.lease import Lost

    settings = Settings(
        image=image or _DEFAULTS.image,
        roots=tuple(check_root(root) for root in roots),
        downloads_at_once=downloads_at_once,
        allow_shared_disk=allow_shared_disk,
    )
    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"

    async def work(cluster: Cluster) -> None:
        own = settings if image or not pod else replace(settings, image=await image_of(cluster, pod))
        await control(cluster, own, identity=identity, listen=listen)

    try:
        serve(work)
    except Lost as lost:
        raise Failure(Reason.CANCELED, f"{lost}; another replica acts") from lost

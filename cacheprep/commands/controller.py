"""`cacheprep controller`."""

from __future__ import annotations

import secrets
import socket

import click

from cacheprep.api.names import DEFAULT_ROOT
from cacheprep.commands.service import LISTEN, check_root, serve
from cacheprep.failures import Failure, Reason
from cacheprep.plan.settings import Settings

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
    default=_DEFAULTS.image,
    envvar="CACHEPREP_IMAGE",
    show_envvar=True,
    help="Image of cacheprep, for Jobs and init containers.",
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
    roots: tuple[str, ...], image: str, downloads_at_once: int, allow_shared_disk: bool, listen: str
) -> None:
    """Keep the model caches of a cluster as its objects ask for, until SIGTERM.

    Of several replicas one acts: the one that holds the Lease cacheprep-controller. Whatever it was at when
    it ended, the next one goes on from what is. Ends with Canceled when it has lost the lease.
    """
    from cacheprep.controller.controller import control
    from cacheprep.controller.lease import Lost

    settings = Settings(
        image=image,
        roots=tuple(check_root(root) for root in roots),
        downloads_at_once=downloads_at_once,
        allow_shared_disk=allow_shared_disk,
    )
    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    try:
        serve(lambda cluster: control(cluster, settings, identity=identity, listen=listen))
    except Lost as lost:
        raise Failure(Reason.CANCELED, f"{lost}; another replica acts") from lost

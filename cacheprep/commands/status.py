"""`cacheprep status`."""

from __future__ import annotations

import asyncio
import time
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import aiohttp
import click

from cacheprep.commands.options import json_option
from cacheprep.commands.output import print_json, print_table, size, when, when_or_none
from cacheprep.failures import Failure, Reason
from extproc.pool.discovery.kubernetes import FORBIDDEN, ApiError, connected

if TYPE_CHECKING:
    from cacheprep.controller.overview import NodeLine, Overview
    from cacheprep.controller.world import World

_STEPS_SHOWN = 10


@click.command("status")
@click.argument("name", required=False)
@click.option("-n", "--namespace", metavar="NAMESPACE", help="Only endpoints of this namespace.")
@json_option
def command(name: str | None, namespace: str | None, as_json: bool) -> None:
    """Say how the model caches of a cluster are: all endpoints, or those called NAME.

    For each node: what it has, how fast more comes and how long that takes, since when all is verified, why
    it lacks the rest and when it is tried again; then what the controller does next, and why. It is read with
    your own rights from the cluster of your kubeconfig. With --json: a list of objects with everything that
    is shown.
    """
    from cacheprep.controller.overview import overview
    from cacheprep.controller.world import World
    from cacheprep.plan.settings import Settings

    world = World(lambda _: None, lambda: None, time.time)
    image = asyncio.run(_read(world)) or Settings().image
    found = []
    now = time.time()
    for parent in sorted(world.parents, key=lambda one: (one.namespace, one.name)):
        if name not in (None, parent.name) or namespace not in (None, parent.namespace):
            continue
        observed = world.observed(parent, now)
        if observed is not None:
            # Which roots the operator allows is its own business: here each is taken for allowed.
            roots = tuple({cache.spec.host_path for cache in observed.data_caches}) or Settings().roots
            found.append(overview(observed, Settings(roots=roots, image=image)))
    if not found and name is not None:
        raise Failure(Reason.INVALID_REQUEST, _unknown(name, namespace, world))
    if as_json:
        print_json([_object(one) for one in found])
        return
    if not found:
        click.echo("no InferenceEndpointConfig and no JumpStartModel")
    for number, one in enumerate(found):
        if number:
            click.echo()
        _print(one, now)


def _unknown(name: str, namespace: str | None, world: World) -> str:
    """That there is no such endpoint, and the one that may be meant."""
    where = f" in namespace {namespace}" if namespace is not None else ""
    known = [one for one in world.parents if namespace in (None, one.namespace)]
    near = get_close_matches(name, [one.name for one in known], 1)
    meant = f"did you mean {near[0]}? " if near else ""
    if not near and (elsewhere := sorted(one.namespace for one in world.parents if one.name == name)):
        meant = f"there is one in namespace {elsewhere[0]}; "
    return (
        f"endpoint {name!r}: there is no such InferenceEndpointConfig or JumpStartModel{where};"
        f" {meant}`cacheprep status` lists all"
    )


async def _read(world: World) -> str:
    """Read all, and the operator's image as it has written it; "" if it has written none."""
    from cacheprep.api.names import COMPONENT
    from cacheprep.controller.reading import own_image
    from cacheprep.objects import RESOURCES
    from extproc.pool.discovery.kubernetes import Listing

    try:
        async with connected() as cluster:
            for index in world.indices:
                objects, _ = await cluster.objects(index.listing)
                index.take(objects)
            keeping = Listing(RESOURCES["DaemonSet"], "", own_image, selector=COMPONENT)
            images, _ = await cluster.objects(keeping)
            return next(filter(None, images.values()), "")
    except ApiError as error:
        denied = error.status in (401, FORBIDDEN)
        reason = Reason.ACCESS_DENIED if denied else Reason.INVALID_REQUEST
        raise Failure(reason, f"the cluster cannot be read: {error}") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Failure(
            Reason.SOURCE_UNAVAILABLE,
            f"the API server does not answer: {error}; see whether kubectl can",
        ) from error


def _print(one: Overview, now: float) -> None:
    cache = f", cache {one.cache}" if one.cache else ""
    click.echo(f"{one.kind} {one.namespace}/{one.name}: {one.phase}{cache}")
    for kind, status, reason, message in one.conditions:
        click.echo(f"  {kind} {status} ({reason}): {message}")
    if one.nodes:
        click.echo()
        head = ("NODE", "STATE", "BYTES", "RATE", "LEFT", "VERIFIED", "REASON", "NEXT TRY")
        print_table(head, [_row(line, now) for line in one.nodes])
    for line in one.nodes:
        if line.message:
            click.echo(f"  {line.node}: {line.message}\n    -> {line.remedy}")
    for why, count in one.others:
        click.echo(f"  {count} other node{'s' * (count != 1)}: {why}")
    click.echo()
    if not one.steps:
        waits = "" if one.wake_at is None else f"; looks again at {when(one.wake_at)}"
        click.echo(f"Next: nothing{waits}")
        return
    click.echo("Next:")
    for step in one.steps[:_STEPS_SHOWN]:
        click.echo(f"  {step.what}: {step.why}")
    if len(one.steps) > _STEPS_SHOWN:
        click.echo(f"  and {len(one.steps) - _STEPS_SHOWN} more")


def _row(line: NodeLine, now: float) -> tuple[str, ...]:
    from cacheprep.controller.overview import UNKNOWN

    whole = line.bytes_done == line.bytes_total
    share = size(line.bytes_total) if whole else f"{size(line.bytes_done)} of {size(line.bytes_total)}"
    percent = "" if whole or not line.bytes_done else f" {100 * line.bytes_done // line.bytes_total}%"
    return (
        line.node,
        f"{line.state}{percent}",
        "-" if line.state == UNKNOWN else share,
        "-" if line.bytes_per_second is None else f"{size(line.bytes_per_second)}/s",
        "-" if line.eta_seconds is None else _left(line.eta_seconds),
        "-" if line.verified_at is None else f"{_age(now - line.verified_at)} ago",
        line.reason or "-",
        "-" if line.next_attempt is None else f"in {_age(line.next_attempt - now)}",
    )


def _left(seconds: int) -> str:
    """A time to wait, in its two largest units: 41s, 1m37s, 2h05m, 3d04h."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02}h"
    if hours:
        return f"{hours}h{minute:02}m"
    return f"{minutes}m{second:02}s" if minutes else f"{second}s"


def _age(seconds: float) -> str:
    """As kubectl writes an age: 45s, 12m, 3h, 5d."""
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def _object(one: Overview) -> dict[str, Any]:
    conditions = [
        dict(zip(("type", "status", "reason", "message"), each, strict=True)) for each in one.conditions
    ]
    nodes = [
        {
            **line._asdict(),
            "verified_at": when_or_none(line.verified_at),
            "next_attempt": when_or_none(line.next_attempt),
        }
        for line in one.nodes
    ]
    return {
        **one._asdict(),
        "conditions": conditions,
        "nodes": nodes,
        "others": [{"why": why, "nodes": count} for why, count in one.others],
        "steps": [step._asdict() for step in one.steps],
        "wake_at": when_or_none(one.wake_at),
    }

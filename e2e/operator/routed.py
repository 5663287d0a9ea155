"""A model service of the operator's behind the gateway: where e2e/scenarios has a Deployment and a Service,
there is an InferenceEndpointConfig of that name, and all else stays as docs/attach-envoy-gateway.md says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from e2e.cluster import kind
from e2e.operator.tenant import Json, Tenant
from e2e.operator.waiting import until
from e2e.scenarios import load, stack
from e2e.scenarios.load import Client
from extproc.pool.discovery.kubernetes import connected

NAME = "llm"
"""Of the endpoint, and so of its Service, to which the route leads."""
_ENGINES = (("Deployment", NAME), ("Service", NAME))


@asynccontextmanager
async def routed(source: Json, replicas: int | None, **said: Any) -> AsyncIterator[tuple[Tenant, Client]]:
    """The endpoint, serving, and who asks the gateway; afterwards the engines of e2e/scenarios again.

    Args:
        source: of the model.
        replicas: pods at first; None where `said` has an autoscaler.
        said: more of the endpoint's spec.
    """
    made = stack.objects()
    engines = [one for one in made if (one["kind"], one["metadata"]["name"]) in _ENGINES]
    others = [one for one in made if one not in engines]
    async with connected() as cluster:
        tenant = Tenant(cluster, stack.ENGINES)
        await tenant.move_in()
        await stack.remove(engines, others)
        await asyncio.to_thread(kind.apply, others)
        scale: Json = {} if replicas is None else {"replicas": replicas}
        try:
            await tenant.endpoint(NAME, source, **scale, **said)
            if replicas is not None:
                await tenant.serves(NAME, replicas)
            else:
                await tenant.says(NAME, "Available", "Serving", 240)
            await stack.rolled_out(stack.ROUTER, "extproc")
            await stack.configure(stack.written(made))
            await until(stack.accepted, "the gateway has taken the route and the policies", 90)
            async with load.client(kind.gateway_address()) as asking:

                async def pins() -> bool:
                    return (await asking.ask(9999)).pinned

                await until(pins, "requests are pinned", 60)
                yield tenant, asking
        finally:
            await tenant.delete(NAME)
            await until(tenant.has_no_endpoint, "the endpoint is gone", 180)
            await asyncio.to_thread(kind.apply, made)

"""The router's configuration beside the cluster: do its pools have engines, and get requests?"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.config import Config, PoolConfig
from extproc.doctor.attachments import Attachment, attachments
from extproc.doctor.findings import Finding, error, warning
from extproc.doctor.inventory import (
    Inventory,
    Json,
    Pods,
    Reference,
    at,
    entries,
    listed,
    reference_of,
    titled,
)
from extproc.pool.discovery.endpoint_slices import serving, slice_of
from extproc.pool.discovery.inference_pool import NOT_SAID, members_of, pod_of


def check(inventory: Inventory, service: Reference, config: Config) -> Iterator[Finding]:
    """What is wrong with the pools of the router behind this Service."""
    for pool in config.pools:
        yield from _endpoints(inventory, pool, service.namespace)
    for one in attachments(inventory, service):
        yield from _taken(one, config, service.namespace)


def wanted(inventory: Inventory, config: Config | None, namespace: str) -> Iterator[Pods]:
    """The pods that have to be asked for: those of the pools' selectors, and of every InferencePool."""
    for pool in config.pools if config else ():
        if pool.endpoints.pods is not None:
            yield Pods(pool.endpoints.pods.namespace or namespace, pool.endpoints.pods.selector)
    for found in inventory.of("InferencePool"):
        yield members(found)


def members(inference_pool: Json) -> Pods:
    """The pods that an InferencePool selects."""
    return Pods(reference_of(inference_pool).namespace, members_of(inference_pool).selector)


def ready(inventory: Inventory, pods: Pods) -> int:
    """How many of them are ready and not told to stop."""
    return sum(pod_of(one).ready for one in inventory.pods.get(pods, ()))


def _endpoints(inventory: Inventory, pool: PoolConfig, namespace: str) -> Iterator[Finding]:
    where = f"pool {pool.name}"
    endpoints = pool.endpoints
    if endpoints.service is not None:
        service = Reference(endpoints.service.namespace or namespace, endpoints.service.name)
        yield from _service(inventory, where, service, endpoints.service.port)
    elif endpoints.pods is not None:
        pods = Pods(endpoints.pods.namespace or namespace, endpoints.pods.selector)
        if not ready(inventory, pods):
            yield _empty(where, f"no ready pod in namespace {pods.namespace} has {pods.selector}")
    elif endpoints.inference_pool is not None:
        named = Reference(endpoints.inference_pool.namespace or namespace, endpoints.inference_pool.name)
        found = inventory.get("InferencePool", named)
        if found is None:
            yield error(
                "pool-names-nothing",
                where,
                f"there is no InferencePool {named}: requests pass unpinned, and the router is not ready",
                "create it, or mend endpoints.inferencePool in the router's configuration",
            )
        elif members_of(found) == NOT_SAID:
            yield _empty(where, f"InferencePool {named} selects nothing")


def _service(inventory: Inventory, where: str, service: Reference, port: str | int) -> Iterator[Finding]:
    if inventory.get("Service", service) is None:
        yield error(
            "pool-names-nothing",
            where,
            f"there is no Service {service}: requests pass unpinned, and the router is not ready",
            "create it, or mend endpoints.service in the router's configuration",
        )
        return
    slices = [slice_of(one, port) for one in inventory.slices(service) if one["addressType"] != "FQDN"]
    if serving(slices):
        return
    others = {text for one in slices for text in one.other_ports}
    if others:
        yield error(
            "pool-port",
            where,
            f"the endpoints of Service {service} have no port {port}, only {listed(sorted(others))}",
            "mend endpoints.service.port: the port's name, or the number on which the engines listen",
        )
    else:
        yield _empty(where, f"Service {service} has no ready endpoints")


def _empty(where: str, what: str) -> Finding:
    return error(
        "pool-without-endpoints",
        where,
        f"{what}: its requests are answered with 503",
        "see why the engines are not ready, or mend endpoints in the router's configuration",
    )


def _taken(one: Attachment, config: Config, namespace: str) -> Iterator[Finding]:
    """Does a pool take the route's requests, and are its engines those that the gateway knows?"""
    for index, rule in enumerate(entries(one.route, "spec", "rules")):
        name = _route_name(one.route, index)
        taking = [pool for pool in config.pools if pool.match is None or pool.match.allows(name, "")]
        if not taking:
            yield error(
                "route-not-taken",
                titled(one.route),
                f"no pool takes its requests: they come as {name}",
                f'give a pool match: {{route: "{name.partition("/rule/")[0]}/*"}}',
            )
            return
        known = [
            Reference(at(backend, "namespace") or reference_of(one.route).namespace, backend["name"])
            for backend in entries(rule, "backendRefs")
            if at(backend, "kind") in (None, "Service")
        ]
        for pool in taking:
            service = pool.endpoints.service
            picked = service and Reference(service.namespace or namespace, service.name)
            if picked and known and picked not in known:
                yield warning(
                    "other-backend",
                    titled(one.route),
                    f"pool {pool.name} picks engines of Service {picked}, and the gateway sends to"
                    f" {listed(known)}: picks that it does not know are skipped",
                    "name the same Service in the route and in the pool, or tell pools apart by match",
                )


def _route_name(route: Json, rule: int) -> str:
    """The name that Envoy Gateway gives the first match of a rule, and with it the pools' `match.route`."""
    host = next(iter(entries(route, "spec", "hostnames")), "*")
    reference = reference_of(route)
    kind = route["kind"].lower()
    return f"{kind}/{reference.namespace}/{reference.name}/rule/{rule}/match/0/{host.replace('.', '_')}"

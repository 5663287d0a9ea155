"""Asks the API server for everything that the checks look at. The only module of the doctor with IO."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from extproc.config import Config, ConfigError, parse
from extproc.doctor import pools
from extproc.doctor.access import Right, needed
from extproc.doctor.diagnosis import Evidence
from extproc.doctor.findings import Finding, error, warning
from extproc.doctor.inventory import Inventory, Json, Pods, Reference, at
from extproc.pool.discovery.endpoint_slices import ENDPOINT_SLICES, SERVICE_NAME
from extproc.pool.discovery.kubernetes import FORBIDDEN, ApiError, Cluster, Listing, Resource

KINDS = {
    "Gateway": Resource("gateway.networking.k8s.io", "v1", "gateways"),
    "HTTPRoute": Resource("gateway.networking.k8s.io", "v1", "httproutes"),
    "GRPCRoute": Resource("gateway.networking.k8s.io", "v1", "grpcroutes"),
    "ReferenceGrant": Resource("gateway.networking.k8s.io", "v1beta1", "referencegrants"),
    "EnvoyExtensionPolicy": Resource("gateway.envoyproxy.io", "v1alpha1", "envoyextensionpolicies"),
    "BackendTrafficPolicy": Resource("gateway.envoyproxy.io", "v1alpha1", "backendtrafficpolicies"),
    "ClientTrafficPolicy": Resource("gateway.envoyproxy.io", "v1alpha1", "clienttrafficpolicies"),
    "InferencePool": Resource("inference.networking.k8s.io", "v1", "inferencepools"),
    "GatewayClass": Resource("gateway.networking.k8s.io", "v1", "gatewayclasses"),
    "BackendTLSPolicy": Resource("gateway.networking.k8s.io", "v1", "backendtlspolicies"),
    "DestinationRule": Resource("networking.istio.io", "v1", "destinationrules"),
}
"""Kinds of which all objects are read, in every namespace."""

SERVICES = Resource("", "v1", "services")
PODS = Resource("", "v1", "pods")
CONFIG_MAPS = Resource("", "v1", "configmaps")

NOT_FOUND = 404


class Asked(NamedTuple):
    """Which router is looked at, and where its settings are."""

    service: Reference
    config_map: str
    """In the Service's namespace; not read where `config` is given."""
    key: str
    config: Config | None = None
    account: str | None = None
    """ServiceAccount of its pods; None: what they say, or the Service's name where there are none."""


async def read(cluster: Cluster, asked: Asked) -> Evidence:
    """Everything that is known of this router.

    What may not be read is a finding. Raises `ApiError` otherwise, and aiohttp.ClientError or TimeoutError if
    the API server cannot be reached.
    """
    reading = _Reading(cluster)
    namespace = asked.service.namespace
    config = asked.config or await reading.configuration(namespace, asked.config_map, asked.key)
    objects = {kind: await reading.objects(kind, resource) for kind, resource in KINDS.items()}
    named = [asked.service, *_services(config, namespace)]
    objects["Service"] = [one for service in named for one in await reading.service(service)]
    objects["EndpointSlice"] = [one for service in named for one in await reading.slices(service)]
    inventory = Inventory(objects)
    selected = {
        pods: await reading.pods(pods)
        for pods in dict.fromkeys(pools.wanted(inventory, config, namespace))
        if pods.selector
    }
    account = asked.account or await reading.account(inventory, asked.service) or asked.service.name
    allowed = {} if config is None else await reading.allowed(needed(config, namespace), namespace, account)
    return Evidence(
        asked.service,
        Reference(namespace, account),
        config,
        Inventory(objects, selected),
        allowed,
        tuple(reading.troubles),
        frozenset(reading.unread),
    )


def _services(config: Config | None, namespace: str) -> Iterable[Reference]:
    sources = [pool.endpoints.service for pool in config.pools] if config else []
    return dict.fromkeys(Reference(one.namespace or namespace, one.name) for one in sources if one)


class _Reading:
    """Questions to the API server, and what they were refused."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.troubles: list[Finding] = []
        self.unread: set[str] = set()

    async def objects(
        self, kind: str, resource: Resource, namespace: str = "", selector: str = "", name: str = ""
    ) -> list[Json]:
        """Objects of a kind, which lists of the API server leave out of each; none if it is not installed."""
        listing: Listing[Json] = Listing(
            resource, namespace, lambda item: {**item, "kind": kind}, selector=selector, name=name
        )
        try:
            found, _ = await self._cluster.objects(listing)
        except ApiError as refusal:
            if refusal.status == FORBIDDEN:
                self.unread.add(kind)
                self._forbidden(f"list {resource.plural}", namespace)
            elif refusal.status != NOT_FOUND:
                raise
            return []
        return list(found.values())

    async def service(self, service: Reference) -> list[Json]:
        return await self.objects("Service", SERVICES, service.namespace, name=service.name)

    async def slices(self, service: Reference) -> list[Json]:
        return await self.objects(
            "EndpointSlice", ENDPOINT_SLICES, service.namespace, f"{SERVICE_NAME}={service.name}"
        )

    async def pods(self, pods: Pods) -> list[Json]:
        return await self.objects("Pod", PODS, pods.namespace, pods.selector)

    async def configuration(self, namespace: str, name: str, key: str) -> Config | None:
        """The router's settings; None if they cannot be had, which is a finding."""
        where = f"ConfigMap {namespace}/{name}"
        found = await self.objects("ConfigMap", CONFIG_MAPS, namespace, name=name)
        if "ConfigMap" in self.unread:
            return None
        text = at(found[0], "data", key) if found else None
        if text is None:
            self.troubles.append(
                warning(
                    "no-configuration",
                    where,
                    f"has no key {key}" if found else "there is no such ConfigMap",
                    "name the router's with --config-map and --key, or give its file with --config",
                )
            )
            return None
        try:
            return parse(text, key)
        except ConfigError as refusal:
            self.troubles += [
                error(
                    "configuration",
                    where,
                    f"{problem.path or 'the file'}: {problem.message}",
                    "mend it: the router keeps what it ran with, and does not start anew with this",
                )
                for problem in refusal.problems
            ]
            return None

    async def account(self, inventory: Inventory, service: Reference) -> str | None:
        """The ServiceAccount of the pods behind a Service."""
        found = inventory.get("Service", service)
        selector = at(found, "spec", "selector") or {}
        if not selector:
            return None
        words = ",".join(f"{key}={value}" for key, value in selector.items())
        for pod in await self.pods(Pods(service.namespace, words)):
            name: str | None = at(pod, "spec", "serviceAccountName")
            return name
        return None

    async def allowed(self, rights: Iterable[Right], namespace: str, account: str) -> dict[Right, bool]:
        """Which of these rights a ServiceAccount has."""
        user = f"system:serviceaccount:{namespace}:{account}"
        own = await self._own_name() == user
        kind = "SelfSubjectAccessReview" if own else "SubjectAccessReview"
        whose: dict[str, Any] = {}
        if not own:
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
            whose = {"user": user, "groups": groups}
        answers: dict[Right, bool] = {}
        for right in rights:
            spec = {**whose, "resourceAttributes": right._asdict()}
            try:
                review = await self._review("authorization.k8s.io/v1", kind, spec)
            except ApiError as refusal:
                if refusal.status != FORBIDDEN:
                    raise
                self._forbidden("create subjectaccessreviews", "")
                return {}
            answers[right] = bool(at(review, "status", "allowed"))
        return answers

    async def _own_name(self) -> str:
        try:
            review = await self._review("authentication.k8s.io/v1", "SelfSubjectReview", {})
        except ApiError:  # older than 1.28: then somebody else is asked about
            return ""
        return str(at(review, "status", "userInfo", "username"))

    async def _review(self, version: str, kind: str, spec: Json) -> Json:
        return await self._cluster.create(
            f"/apis/{version}/{kind.lower()}s", {"apiVersion": version, "kind": kind, "spec": spec}
        )

    def _forbidden(self, what: str, namespace: str) -> None:
        where = f" in namespace {namespace}" if namespace else ""
        self.troubles.append(
            error(
                "cannot-look",
                "extproc doctor",
                f"may not {what}{where}: what depends on it is not checked",
                "run it with a kubeconfig that may",
            )
        )

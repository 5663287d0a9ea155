"""What stands in the cluster of `stack`, with more behind its gateway: other models, and weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import yaml

from e2e.scenarios import stack
from e2e.scenarios.stack import Json, key_of


def second_model(made: Sequence[Json]) -> list[Json]:
    """All of it, and beside it a second model: engines, Service, route and pool named `llm-b`.

    Its route takes the requests with the header `x-model: b`; the policies are attached to both.
    """
    both = copy.deepcopy(list(made))
    for one in made:
        if key_of(one) in (("Deployment", "llm"), ("Service", "llm"), ("HTTPRoute", "llm")):
            both.append(_second(one))
    for one in both:
        if one["kind"] in ("EnvoyExtensionPolicy", "BackendTrafficPolicy"):
            (route,) = one["spec"]["targetRefs"]
            one["spec"]["targetRefs"] = [route, route | {"name": "llm-b"}]
        if key_of(one) == ("ConfigMap", "extproc"):
            parsed = stack.configuration(made)
            (pool,) = parsed["pools"]
            parsed["pools"] = [_pool(pool, "llm"), _pool(pool, "llm-b")]
            one["data"]["extproc.yaml"] = yaml.safe_dump(parsed)
    return both


def weighted(made: Sequence[Json], shares: dict[str, int]) -> list[Json]:
    """All of it, with two Services behind one route by their weights (percent), and one pool over both.

    The filters make Envoy Gateway build a cluster for each Service. Without them it builds one for both, in
    which a pin goes before weights.
    """
    both = [one for one in second_model(made) if key_of(one) != ("HTTPRoute", "llm-b")]
    for one in both:
        if key_of(one) == ("HTTPRoute", "llm"):
            (rule,) = one["spec"]["rules"]
            rule["backendRefs"] = [
                {"name": name, "port": 8000, "weight": weight, "filters": [_names_backend(name)]}
                for name, weight in shares.items()
            ]
        elif one["kind"] in ("EnvoyExtensionPolicy", "BackendTrafficPolicy"):
            one["spec"]["targetRefs"] = one["spec"]["targetRefs"][:1]
        elif key_of(one) == ("ConfigMap", "extproc"):
            parsed = stack.configuration(made)
            pods_ = {"selector": f"app in ({','.join(shares)})", "ports": [8000], "namespace": stack.ENGINES}
            parsed["pools"][0]["endpoints"] = {"pods": pods_}
            one["data"]["extproc.yaml"] = yaml.safe_dump(parsed)
        elif key_of(one) == ("Role", "extproc"):
            one["rules"].append({"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]})
    return both


def _names_backend(name: str) -> Json:
    said = {"set": [{"name": "x-backend", "value": name}]}
    return {"type": "RequestHeaderModifier", "requestHeaderModifier": said}


def _second(one: Json) -> Json:
    other = copy.deepcopy(one)
    other["metadata"]["name"] = "llm-b"
    spec = other["spec"]
    if other["kind"] == "HTTPRoute":
        (rule,) = spec["rules"]
        rule["matches"] = [{"headers": [{"name": "x-model", "value": "b"}]}]
        rule["backendRefs"] = [{"name": "llm-b", "port": 8000}]
    elif other["kind"] == "Service":
        spec["selector"] = {"app": "llm-b"}
    else:
        labels = {"app": "llm-b"}
        spec["replicas"], spec["selector"] = 2, {"matchLabels": labels}
        spec["template"]["metadata"]["labels"] = labels
    return other


def _pool(pool: Json, name: str) -> Json:
    """A pool for the route of this name. Envoy Gateway calls it httproute/NAMESPACE/NAME/rule/..."""
    endpoints = copy.deepcopy(pool["endpoints"])
    endpoints["service"]["name"] = name
    return {**pool, "name": name, "match": {"route": f"httproute/llm/{name}/*"}, "endpoints": endpoints}

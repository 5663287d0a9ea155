"""The kinds of warmroute.dev in a real API server: samples are taken and come back as they were, and what is
wrong is refused with what to do."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from cacheprep.api.definitions import CATEGORY, KINDS, definition
from cacheprep.api.names import GROUP, VERSION
from cacheprep.objects import path
from extproc.pool.discovery.kubernetes import ApiError, Cluster, connected
from tests.apiserver.cluster import ADMIN, ApiServer
from tests.envoy.process import eventually

Json = dict[str, Any]

SAMPLES = Path(__file__).parents[2] / "manifests" / "operator" / "samples"
REFUSED = Path(__file__).parent / "refused_samples.yaml"
MODELS = {kind.model.KIND: kind.model for kind in KINDS}
_numbers = itertools.count(1)


class Kinds(NamedTuple):
    """An API server that knows the kinds, and a namespace in it."""

    cluster: Cluster
    namespace: str

    async def create(self, written: Json, *, dry_run: bool = False) -> Json:
        body = deepcopy(written)
        if MODELS[body["kind"]].NAMESPACED:
            body["metadata"]["namespace"] = self.namespace
        else:
            body["metadata"]["name"] += f".{self.namespace}"
        where = path(body["kind"], "", body["metadata"].get("namespace", ""))
        # Fields that the kind does not have are an error, not dropped.
        query = [("fieldValidation", "Strict"), *([("dryRun", "All")] if dry_run else [])]
        return dict(await self.cluster.send("POST", where, body, query))


@pytest.fixture(scope="module")
def knowing(server: ApiServer) -> ApiServer:
    """The API server, once it knows the kinds."""

    async def start() -> None:
        async with connected() as cluster:
            await define(cluster)

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KUBECONFIG", str(server.kubeconfig(ADMIN)))
        asyncio.run(start())
    return server


@pytest.fixture
async def kinds(knowing: ApiServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kinds]:
    monkeypatch.setenv("KUBECONFIG", str(knowing.kubeconfig(ADMIN)))
    async with connected() as cluster:
        namespace = f"kinds-{next(_numbers)}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        await cluster.send("POST", "/api/v1/namespaces", body)
        yield Kinds(cluster, namespace)


async def define(cluster: Cluster) -> None:
    """Make the kinds known."""
    query = [("fieldManager", "test"), ("force", "true")]
    for kind in KINDS:
        made = definition(kind)
        where = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{made['metadata']['name']}"
        await cluster.send("PATCH", where, made, query, "application/apply-patch+yaml")

    async def served() -> bool:
        try:
            for kind in KINDS:
                await cluster.send("GET", path(kind.model.KIND))
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    await eventually(served, "the kinds are served", 30)


def sample(name: str) -> Json:
    read: Json = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text())
    return read


def samples() -> list[str]:
    return sorted(file.stem for file in SAMPLES.glob("*.yaml"))


def changed(written: Json, change: dict[str, Any]) -> Json:
    """With these fields, each named by its path, changed; None takes one away."""
    made = deepcopy(written)
    for where, value in change.items():
        *parents, last = where.split(".")
        at = made
        for parent in parents:
            at = at.setdefault(parent, {})
        if value is None:
            del at[last]
        else:
            at[last] = value
    return made


def test_there_is_a_sample_of_every_kind() -> None:
    assert {sample(name)["kind"] for name in samples()} == set(MODELS)


@pytest.mark.parametrize("name", samples())
async def test_a_sample_is_taken_and_reads_as_it_was_written(kinds: Kinds, name: str) -> None:
    written = sample(name)
    status = written.pop("status", None)
    stored = await kinds.create(written)
    model = MODELS[written["kind"]]
    if status is not None:
        where = path(written["kind"], stored["metadata"]["name"], "", "status")
        stored = dict(await kinds.cluster.send("PUT", where, {**stored, "status": status}))
    there, here = model.read(stored), model.read({**written, **({"status": status} if status else {})})
    assert there.write().get("spec") == here.write().get("spec")
    assert there.write()["status"] == here.write()["status"]


@pytest.mark.parametrize("name", samples())
async def test_what_the_models_write_is_taken_whole(kinds: Kinds, name: str) -> None:
    written = sample(name)
    model = MODELS[written["kind"]]
    stored = await kinds.create({"apiVersion": f"{GROUP}/{VERSION}", **written})
    body = {**stored, "status": model.read(written).write()["status"]}
    where = path(
        written["kind"], stored["metadata"]["name"], stored["metadata"].get("namespace", ""), "status"
    )
    kept = await kinds.cluster.send("PUT", where, body, [("fieldValidation", "Strict")])
    assert kept["status"] == body["status"]


async def test_what_is_wrong_is_refused_and_says_what_to_do(kinds: Kinds) -> None:
    for case in yaml.safe_load(REFUSED.read_text()):
        body = changed(sample(case["sample"]), case["change"])
        with pytest.raises(ApiError, match=re.escape(case["says"])) as refused:
            await kinds.create(body, dry_run=True)
        assert refused.value.status == 422, case


async def test_a_field_that_is_misspelt_is_refused(kinds: Kinds) -> None:
    body = changed(sample("http"), {"spec.modelCacheConfig": {"weightCache": {"enabled": True}}})
    with pytest.raises(ApiError, match="weightCache"):
        await kinds.create(body, dry_run=True)


async def test_a_cache_cannot_be_changed_into_another(kinds: Kinds) -> None:
    for name, field in (("model-data-cache-config", "hostPath"), ("model-image-cache", "image")):
        stored = await kinds.create(sample(name))
        where = path(stored["kind"], stored["metadata"]["name"], kinds.namespace)
        body = changed(stored, {f"spec.{field}": "/mnt/other"})
        with pytest.raises(ApiError, match=r"cannot change") as refused:
            await kinds.cluster.send("PUT", where, body)
        assert refused.value.status == 422


async def test_a_status_is_changed_by_its_subresource_only(kinds: Kinds) -> None:
    stored = await kinds.create(sample("model-data-cache-config"))
    where = path(stored["kind"], stored["metadata"]["name"], kinds.namespace)
    kept = await kinds.cluster.send("PUT", where, {**stored, "status": {"state": "Ready"}})
    assert "status" not in kept
    kept = await kinds.cluster.send("PUT", f"{where}/status", {**kept, "status": {"state": "Ready"}})
    assert kept["status"] == {"state": "Ready"}


async def test_kubectl_knows_categories_short_names_and_columns(kinds: Kinds) -> None:
    found = await kinds.cluster.send("GET", f"/apis/{GROUP}/{VERSION}")
    served = {one["kind"]: one for one in found["resources"] if "/" not in one["name"]}
    for kind in KINDS:
        assert served[kind.model.KIND]["categories"] == [CATEGORY]
        assert served[kind.model.KIND]["shortNames"] == [kind.short]
    columns = {
        kind.model.KIND: ["Name", *(column.name for column in kind.columns if not column.priority)]
        for kind in KINDS
    }
    assert columns["ModelDataCacheConfig"] == ["Name", "State", "Target", "Ready", "Age"]
    assert columns["ModelImageCache"] == ["Name", "Phase", "Cached", "Target", "Age"]

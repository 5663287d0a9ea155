"""Sources and routing as users write them are what `cacheprep` and the router take."""

from __future__ import annotations

from typing import Any

import click
import pytest
import yaml

from cacheprep.api import InferenceEndpointConfig, JumpStartModel
from cacheprep.api.serving import Routing, Strategy
from cacheprep.api.sources import CacheSource, arguments
from cacheprep.commands import cacheprep
from cacheprep.plan.workload import routing
from cacheprep.sources import SourceOptions, source_of
from extproc.config import Strategy as RouterStrategy
from extproc.config import parse, with_settings

Json = dict[str, Any]

SOURCES: list[tuple[Json, str, set[str]]] = [
    (
        {
            "s3": {
                "uri": "s3://models/llama/",
                "region": "us-east-1",
                "endpointUrl": "https://s3.example:7070",
                "requesterPays": True,
            }
        },
        "s3://models/llama/",
        {"--region=us-east-1", "--endpoint-url=https://s3.example:7070", "--requester-pays"},
    ),
    ({"fileSystem": {"claimName": "fsx", "path": "models/qwen"}}, "file:///source/models/qwen", set()),
    ({"fileSystem": {"claimName": "fsx"}}, "file:///source", set()),
    (
        {
            "huggingFace": {
                "repository": "owner/name",
                "commitSHA": "a" * 40,
                "tokenSecretRef": {"name": "hub"},
                "endpointUrl": "https://mirror.example",
            }
        },
        "hf://owner/name",
        {f"--revision={'a' * 40}", "--token-env=WARMROUTE_TOKEN", "--hub-endpoint=https://mirror.example"},
    ),
    (
        {"http": {"url": "https://models.example/a/", "manifestUrl": "https://models.example/SUMS"}},
        "https://models.example/a/",
        {"--manifest-url=https://models.example/SUMS"},
    ),
    (
        {"jumpStart": {"modelId": "falcon", "modelVersion": "3.2.0", "acceptEula": True, "bucket": "own"}},
        "jumpstart://falcon@3.2.0",
        {"--accept-eula", "--jumpstart-bucket=own"},
    ),
    ({"jumpStart": {"modelId": "falcon"}}, "jumpstart://falcon", set()),
]


@pytest.mark.parametrize(("written", "url", "options"), SOURCES, ids=[url for _, url, _ in SOURCES])
def test_a_source_is_a_url_and_options_that_the_command_takes(
    written: Json, url: str, options: set[str]
) -> None:
    source = CacheSource.read({**written, "allow": ["*.json"], "ignore": ["*.bin"]})
    said = arguments(source)
    assert said.url == url
    assert options <= set(said.options)
    assert {"--allow=*.json", "--ignore=*.bin", "--verification=first-read"} <= set(said.options)
    source_of(said.url, SourceOptions()).close()
    context = click.Context(cacheprep)
    sources = cacheprep.get_command(context, "sources")
    assert isinstance(sources, click.Group)
    resolve = sources.get_command(context, "resolve")
    assert resolve is not None
    resolve.make_context("resolve", [said.url, *said.options, "--output=-"])


def test_secrets_and_claims_are_named_apart_from_the_command_line() -> None:
    hub = {"repository": "a/b", "tokenSecretRef": {"name": "hub", "key": "t"}}
    said = arguments(CacheSource.read({"huggingFace": hub}))
    assert said.token is not None
    assert (said.token.name, said.token.key) == ("hub", "t")
    assert not any("hub" in word for word in said.options)
    s3 = {"uri": "s3://bucket/a/", "credentialsSecretRef": {"name": "keys"}}
    credentials = arguments(CacheSource.read({"s3": s3})).credentials
    assert credentials is not None
    assert credentials.name == "keys"
    assert arguments(CacheSource.read({"fileSystem": {"claimName": "fsx"}})).claim == "fsx"


def endpoint(kind: type[InferenceEndpointConfig] | type[JumpStartModel], **spec: Any) -> Any:
    engine = {"template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}}
    metadata = {"name": "llama", "namespace": "llm", "uid": "1"}
    return kind.read({"kind": kind.KIND, "metadata": metadata, "spec": {"engine": engine, **spec}})


def test_both_kinds_say_where_their_weights_come_from() -> None:
    written = {"s3": {"uri": "s3://bucket/a/"}}
    made = endpoint(InferenceEndpointConfig, modelSource=written)
    assert made.source == CacheSource.read(written)
    made = endpoint(JumpStartModel, model={"modelId": "falcon"})
    assert made.source == CacheSource.read({"jumpStart": {"modelId": "falcon"}})


def test_the_strategies_are_those_of_the_router() -> None:
    assert [one.value for one in Strategy] == [one.value for one in RouterStrategy]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"strategy": "RANDOM"},
        {"strategy": "PREFIX_AWARE", "prefixLength": "auto", "concurrencyThreshold": 1},
        {"prefixLength": 1024, "concurrencyThreshold": 1024},
        {"prefixLength": 65536},
    ],
)
def test_what_is_written_for_the_router_is_what_it_takes(said: Json) -> None:
    made = endpoint(InferenceEndpointConfig, modelSource={"s3": {"uri": "s3://b/a/"}}, routing=said)
    text = routing(made)["data"]["settings.yaml"]
    pool = "{pools: [{name: llama, endpoints: {static: ['10.0.0.1:8000']}}]}"
    config = parse(pool, "file")
    taken = with_settings(config.pools[0], text, "settings")
    for name, value in Routing.read(said).model_dump(exclude_none=True).items():
        assert getattr(taken, name) == value
    assert yaml.safe_load(text) == (said or None)

"""docs/replicas.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry

from extproc.config import parse
from extproc.sharing.inbox import MAX_KEYS_PER_S
from extproc.sharing.metrics import DROPPED, REFUSED, SharingMetrics
from extproc.sharing.outbox import MAX_WAITING_KEYS

PAGE = (Path(__file__).parent.parent.parent / "docs" / "replicas.md").read_text()


def test_its_examples_can_be_used_as_they_are() -> None:
    router, kubernetes = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    config = parse(router, "replicas.md")
    assert config.sharing is not None
    assert config.sharing.service is not None
    service, policy = yaml.safe_load_all(kubernetes)
    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert config.sharing.service.host == name
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["ports"][0]["port"] == config.sharing.listen.port
    admitted = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    addresses = (config.listen, config.health, config.metrics, config.sharing.listen)
    assert admitted == {address.port for address in addresses if address is not None}


def test_it_names_every_metric_and_no_other() -> None:
    registry = CollectorRegistry()
    SharingMetrics(registry).watch(lambda: (0, 0))
    exist = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()
    }
    assert set(re.findall(r"extproc_sharing_\w+", PAGE)) == exist


def test_it_explains_every_reason_to_drop_or_refuse() -> None:
    assert [reason for reason in (*DROPPED, *REFUSED) if f"`{reason}`" not in PAGE] == []


def test_its_limits_are_those_of_the_code() -> None:
    assert f"{MAX_WAITING_KEYS:,}" in PAGE
    assert f"{MAX_KEYS_PER_S:,}" in PAGE

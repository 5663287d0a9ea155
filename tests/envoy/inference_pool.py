"""A gateway as those that support InferencePool configure theirs, with `extproc epp` as its Endpoint Picker.

From Envoy's side the contract is that of Istio and its like: bodies FULL_DUPLEX_STREAMED both ways, by TLS to
a self-signed picker, the pin taken from metadata, the subset given in metadata. Beyond what they do, two
headers of the request set the subset, in the two forms in which metadata is filled; and nothing strips what a
client sends, so that the picker itself must not look at it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from extproc.envoy_config import Options, RouterTls
from extproc.simulation.http import Settings, SimulatedEngine, engines
from tests.envoy.conftest import FAST
from tests.envoy.gateway import Gateway
from tests.envoy.process import HOST, Process, eventually, free_address
from tests.envoy.router import bytecode

NAMESPACE = "envoy.lb.subset_hint"
KEY = "x-gateway-destination-endpoint-subset"
AS_TEXT = "x-subset-text"
AS_LIST = "x-subset-list"

_LIST_FILTER = f"""
function envoy_on_request(request)
  local subset = request:headers():get("{AS_LIST}")
  if subset then
    local list = {{}}
    for one in subset:gmatch("[^, ]+") do table.insert(list, one) end
    request:streamInfo():dynamicMetadata():set("{NAMESPACE}", "{KEY}", list)
  end
end
"""


def _as_inference_gateway(tree: dict[str, Any]) -> None:
    chain = tree["static_resources"]["listeners"][0]["filter_chains"][0]
    manager = chain["filters"][0]["typed_config"]
    del manager["early_header_mutation_extensions"]
    (host,) = manager["route_config"]["virtual_hosts"]
    host["routes"] = [
        {name: value for name, value in host["routes"][-1].items() if name != "typed_per_filter_config"}
    ]
    ext_proc = manager["http_filters"][0]["typed_config"]
    ext_proc["failure_mode_allow"] = False
    del ext_proc["request_attributes"]
    ext_proc["processing_mode"] = {
        "request_header_mode": "SEND",
        "request_body_mode": "FULL_DUPLEX_STREAMED",
        "request_trailer_mode": "SEND",
        "response_header_mode": "SEND",
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "response_trailer_mode": "SEND",
    }
    ext_proc["metadata_options"]["forwarding_namespaces"]["untyped"].append(NAMESPACE)
    rule = {"metadata_namespace": NAMESPACE, "key": KEY, "type": "STRING"}
    manager["http_filters"][:0] = [
        {
            "name": "subset-as-text",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
                "request_rules": [{"header": AS_TEXT, "on_header_present": rule}],
            },
        },
        {
            "name": "subset-as-list",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
                "default_source_code": {"inline_string": _LIST_FILTER},
            },
        },
    ]


def _obeys_header(tree: dict[str, Any]) -> None:
    _as_inference_gateway(tree)
    engines = tree["static_resources"]["clusters"][0]
    (policy,) = engines["load_balancing_policy"]["policies"]
    sources = policy["typed_extension_config"]["typed_config"]["override_host_sources"]
    sources.insert(0, {"header": "x-gateway-destination-endpoint"})


@dataclass(slots=True)
class Pool:
    """Clients' side first: Envoy, the picker, the engines."""

    url: str
    picker: Process
    engines: list[SimulatedEngine]
    _metrics: str
    _endpoints: Path

    async def set_endpoints(self, endpoints: Sequence[str]) -> None:
        """The pool has these endpoints from now on; waits until the picker knows."""
        self._endpoints.write_text(yaml.safe_dump(list(endpoints)))

        async def known() -> bool:
            suspect = await self.samples("extproc_endpoint_suspect")
            synced = (await self.samples("extproc_pool_synced")).values()
            return list(synced) == [1] and {endpoint for endpoint, _ in suspect} == set(endpoints)

        await eventually(known, "the picker knows its endpoints", 60, process=self.picker)

    async def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """Every sample of a metric of the picker, by its label values in the order of the label names."""
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:
            try:
                page = (await client.get(f"http://{self._metrics}/metrics")).text
            except httpx.TransportError:
                return {}
        return {
            tuple(sample.labels[key] for key in sorted(sample.labels)): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name
        }


@asynccontextmanager
async def inference_pool(
    directory: Path,
    hosts: Sequence[str] = (HOST,) * 3,
    settings: Settings = FAST,
    pool: dict[str, Any] | None = None,
    *,
    known: bool = True,
    obeys_header: bool = False,
) -> AsyncIterator[Pool]:
    """A pool of one engine per address in `hosts`; `pool` are keys of the picker's configuration.

    `known`: the picker is told the endpoints. `obeys_header`: Envoy takes the pin from the header first, as
    some gateways do.
    """
    endpoints, config = directory / "endpoints.yaml", directory / "epp.yaml"
    text = {"pools": [{"name": "x", "endpoints": {"file": str(endpoints)}, **(pool or {})}]}
    config.write_text(yaml.safe_dump(text))
    grpc, health, metrics = (free_address() for _ in range(3))
    ports = [address.rpartition(":")[2] for address in (grpc, health, metrics)]
    flags = ["--grpc-port", ports[0], "--grpc-health-port", ports[1], "--metrics-port", ports[2]]
    flags += ["--pool-name", "llama", "--config-file", str(config), "--endpoints-file", str(endpoints)]
    async with AsyncExitStack() as cleanup:
        picker = Process(
            "extproc epp",
            [str(Path(sys.executable).with_name("extproc")), "epp", *flags],
            directory / "epp.log",
            {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(bytecode())},
        )
        cleanup.callback(picker.kill)
        started = []
        for number, host in enumerate(hosts, 1):
            (engine,) = await cleanup.enter_async_context(engines([0], replace(settings, host=host)))
            engine.name = f"engine-{number}"
            started.append(engine)
        options = Options(
            endpoints=tuple(engine.address for engine in started),
            routers=(grpc,),
            tls=RouterTls(),
            listen=free_address(),
            admin=free_address(),
            message_timeout=5.0,
        )
        gateway = Gateway(options, directory, _obeys_header if obeys_header else _as_inference_gateway)
        cleanup.callback(gateway.process.kill)
        made = Pool(gateway.url, picker, started, metrics, endpoints)
        await gateway.ready()
        if known:
            await made.set_endpoints(options.endpoints)
            await gateway.sees_routers(1)
        else:

            async def unknown() -> bool:
                return list((await made.samples("extproc_pool_synced")).values()) == [0]

            await eventually(unknown, "the picker runs", 60, process=picker)
        yield made

"""Writes EndpointSlices in a process of its own: `python -m bench.discovery.writer NAMESPACE`.

Each line of the input is a command in JSON, `{"slices": [3, 4], "round": 7}`; the answer is when the first of
these slices was sent and when the last was written, in seconds of the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import orjson
from kubernetes_asyncio import client as api
from kubernetes_asyncio import config

SLICE = 100
"""Endpoints of one slice, as Kubernetes writes them."""
SERVICE, PORT = "llama", 8000
AT_ONCE = 8
"""Slices in flight to the API server."""


def slice_body(number: int, round_: int) -> dict[str, Any]:
    """Slice `number`. In each round another of its endpoints is not ready."""
    return {
        "metadata": {
            "name": f"{SERVICE}-{number}",
            "labels": {
                "kubernetes.io/service-name": SERVICE,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [f"10.{number >> 8}.{number & 255}.{index + 1}"],
                "conditions": {"ready": ready, "serving": ready, "terminating": False},
                "nodeName": f"node-{(number * SLICE + index) // 8}",
                "zone": f"zone-{index % 3}",
                "targetRef": {
                    "kind": "Pod",
                    "name": f"{SERVICE}-{number}-{index}",
                    "namespace": "bench",
                    "uid": f"{number:08x}-0000-4000-8000-{index:012x}",
                },
            }
            for index in range(SLICE)
            for ready in [index != round_ % SLICE]
        ],
        "ports": [{"name": "http", "port": PORT, "protocol": "TCP"}],
    }


async def write(slices: api.DiscoveryV1Api, namespace: str, numbers: list[int], round_: int) -> None:
    """Write these slices, whether they are there or not."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        body = slice_body(number, round_)
        async with places:
            try:
                await slices.replace_namespaced_endpoint_slice(body["metadata"]["name"], namespace, body)
            except api.ApiException as error:
                if error.status != 404:
                    raise
                await slices.create_namespaced_endpoint_slice(namespace, body)

    await asyncio.gather(*map(one, numbers))


async def main(namespace: str) -> None:
    """Do what the input says until it ends."""
    client = await config.new_client_from_config()
    try:
        slices = api.DiscoveryV1Api(client)
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = orjson.loads(line)
            sent = time.monotonic()
            await write(slices, namespace, command["slices"], command["round"])
            print(f"{sent} {time.monotonic()}", flush=True)
    finally:
        await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

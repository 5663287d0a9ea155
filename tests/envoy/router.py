"""The router as users run it: `extproc serve --config FILE` in a process of its own."""

from __future__ import annotations

import atexit
import shutil
import signal
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.envoy.process import Process, eventually, free_address


@cache
def bytecode() -> Path:
    """A directory for this run of the tests."""
    directory = Path(tempfile.mkdtemp(prefix="extproc-bytecode-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


class Router:
    """One router. Its addresses stay the same when it is started again."""

    def __init__(self, listen: str, directory: Path, pool: dict[str, Any], **settings: Any) -> None:
        self.listen = listen
        directory.mkdir(parents=True, exist_ok=True)
        self.metrics = free_address()
        self.config = directory / "extproc.yaml"
        self.config.write_text(
            yaml.safe_dump(
                {"listen": listen, "health": None, "metrics": self.metrics, "pools": [pool], **settings}
            )
        )
        self._log = directory / "extproc.log"
        self.process: Process | None = None

    async def start(self) -> None:
        assert self.process is None or not self.process.running
        self.process = Process(
            "extproc serve",
            [str(Path(sys.executable).with_name("extproc")), "serve", "--config", str(self.config)],
            self._log,
            # Where Python is told not to cache bytecode, each start would compile every library anew.
            {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(bytecode())},
        )
        await self.ready()

    async def ready(self) -> None:
        async def synced() -> bool:
            try:
                return await self.metric("extproc_pool_synced") == 1
            except httpx.TransportError:
                return False

        await eventually(synced, "the router is ready", 30, process=self.process)

    def kill(self) -> None:
        """As the kernel's out-of-memory killer would: at once, without a word."""
        if self.process is not None:
            self.process.kill()

    def drain(self) -> None:
        """As Kubernetes does it: SIGTERM."""
        assert self.process is not None
        self.process.signal(signal.SIGTERM)

    async def page(self) -> str:
        """The page of metrics."""
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:
            return (await client.get(f"http://{self.metrics}/metrics")).text

    async def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """Every sample of a metric, by its label values in the order of the label names."""
        page = await self.page()
        return {
            tuple(sample.labels[key] for key in sorted(sample.labels)): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name
        }

    async def metric(self, name: str) -> float:
        """A metric summed over its labels."""
        return sum((await self.samples(name)).values())

    def log_tail(self) -> str:
        return "" if self.process is None else self.process.tail()

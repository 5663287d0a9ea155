"""The router's image as a container beside an Envoy in another: equal prefixes reach one engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import docker
import httpx
import pytest
import yaml
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from e2e.cluster.gateway import envoy_binary
from tests.image.conftest import EXTPROC

HARDENED = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}


def address(container: DockerContainer, network: Network) -> str:
    wrapped = container.get_wrapped_container()
    wrapped.reload()
    return str(wrapped.attrs["NetworkSettings"]["Networks"][network.name]["IPAddress"])


@pytest.fixture
def gateway(engine: docker.DockerClient, tmp_path: Path) -> Iterator[str]:
    """URL of an Envoy before two engines, configured by the image itself."""
    assert engine.ping()
    with Network() as network, ExitStack() as running:

        def start(container: DockerContainer, ready: str, **how: str) -> DockerContainer:
            told = LogMessageWaitStrategy(ready).with_startup_timeout(60)
            return running.enter_context(
                container.with_network(network).with_kwargs(**HARDENED, **how).waiting_for(told)
            )

        engines = []
        for _ in range(2):
            simulated = DockerContainer(EXTPROC).with_command(
                "simulate --host 0.0.0.0 --port 8000 --log json"
            )
            engines.append(f"{address(start(simulated, 'ready'), network)}:8000")
        configuration = {
            "listen": "0.0.0.0:9002",
            "pools": [{"name": "llm", "endpoints": {"static": engines}, "engineMetrics": False}],
        }
        tmp_path.chmod(0o755)
        (tmp_path / "extproc.yaml").write_text(yaml.safe_dump(configuration))
        router = start(
            DockerContainer(EXTPROC)
            .with_volume_mapping(str(tmp_path), "/etc/extproc")
            .with_command("serve --config /etc/extproc/extproc.yaml"),
            "serving",
        )
        bootstrap = engine.containers.run(
            EXTPROC,
            [
                *("envoy-config", "--config", "/etc/extproc/extproc.yaml", "--listen", "0.0.0.0:8080"),
                *("--router", f"{address(router, network)}:9002", "--admin", "off"),
            ],
            volumes={str(tmp_path): {"bind": "/etc/extproc", "mode": "ro"}},
            remove=True,
        )
        (tmp_path / "envoy.yaml").write_bytes(bootstrap)
        proxy = start(
            DockerContainer(EXTPROC)
            .with_volume_mapping(str(tmp_path), "/etc/envoy")
            .with_volume_mapping(str(envoy_binary()), "/envoy")
            .with_command("--config-path /etc/envoy/envoy.yaml")
            .with_exposed_ports(8080),
            "starting main dispatch loop",
            entrypoint="/envoy",
        )
        yield f"http://127.0.0.1:{proxy.get_exposed_port(8080)}"


def test_the_image_pins_equal_prefixes_to_one_engine(gateway: str) -> None:
    with httpx.Client(base_url=gateway, trust_env=False) as client:
        replies = [
            client.post(
                "/v1/chat/completions",
                json={
                    "model": "simulated",
                    "max_tokens": 1,
                    "messages": [
                        {"role": "system", "content": f"document {number} " * 200},
                        {"role": "user", "content": f"question {turn}"},
                    ],
                },
            )
            for turn in range(3)
            for number in range(6)
        ]
    assert {reply.status_code for reply in replies} == {200}
    served = [reply.headers["x-request-pin"].split(",")[0] for reply in replies]
    assert served[:6] == served[6:12] == served[12:]
    assert len(set(served)) == 2

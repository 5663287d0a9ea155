"""The router's stream by TLS, from an Envoy with a configuration as `extproc envoy-config` prints it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extproc.envoy_config import RouterTls
from tests.certificates import Authority, Mounted
from tests.envoy.client import client
from tests.envoy.conftest import Stack, Stacks
from tests.envoy.traffic import ask, chat, text

NAMES = ("router.example", "127.0.0.1")


async def pinned(stack: Stack) -> int:
    """Of ten requests, how many the router was asked about; all must be answered."""
    before = await stack.router.metric("extproc_requests_total")
    async with client(stack.url, "HTTP/1.1") as gateway:
        replies = [await ask(gateway, chat(text(seed, 500))) for seed in range(10)]
    assert {reply.status for reply in replies} == {200}
    return int(await stack.router.metric("extproc_requests_total") - before)


def served(mounted: Mounted, *, mutual: bool = False) -> dict[str, Any]:
    files = {"cert": str(mounted.cert), "key": str(mounted.key)}
    return {"tls": {**files, "clientCa": str(mounted.ca)} if mutual else files}


async def test_envoy_and_router_know_each_other_by_an_authority(stacks: Stacks, tmp_path: Path) -> None:
    authority = Authority()
    router = Mounted(tmp_path / "router", authority.issue(NAMES), authority.pem)
    envoy = Mounted(tmp_path / "envoy", authority.issue(["envoy"]), authority.pem)
    tls = RouterTls(trusted_ca=str(envoy.ca), names=NAMES[:1], cert=str(envoy.cert), key=str(envoy.key))
    async with stacks(router=served(router, mutual=True), tls=tls) as stack:
        await stack.gateway.sees_routers(1)
        assert await pinned(stack) == 10


async def test_the_certificate_itself_may_be_what_envoy_trusts(stacks: Stacks, tmp_path: Path) -> None:
    router = Mounted(tmp_path, Authority().issue(NAMES))
    tls = RouterTls(trusted_ca=str(router.cert), names=NAMES)
    async with stacks(router=served(router), tls=tls) as stack:
        assert await pinned(stack) == 10


async def test_a_self_signed_router_is_asked_by_an_envoy_that_trusts_anybody(stacks: Stacks) -> None:
    async with stacks(router={"tls": {"selfSigned": True}}, tls=RouterTls()) as stack:
        assert await pinned(stack) == 10


async def test_a_router_that_envoy_does_not_trust_is_not_asked(stacks: Stacks, tmp_path: Path) -> None:
    authority = Authority()
    router = Mounted(tmp_path, authority.issue(["another.example"]), authority.pem)
    tls = RouterTls(trusted_ca=str(router.ca), names=NAMES)
    async with stacks(router=served(router), tls=tls) as stack:
        assert await pinned(stack) == 0

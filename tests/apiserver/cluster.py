"""A real kube-apiserver on a real etcd, without nodes: pods are written, and nobody runs them."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from kubernetes_asyncio import client as api
from kubernetes_asyncio.config import new_client_from_config

from tests.apiserver import kinds
from tests.certificates import Authority
from tests.envoy.process import HOST, Process, eventually, free_address

ADMIN, PICKER = "admin-token", "picker-token"

INFERENCE_POOLS = (
    "{apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [list, watch]}"
)
PODS = '{apiGroups: [""], resources: [pods], verbs: [list, watch]}'


def endpoint(address: str, pod: str = "", /, **conditions: bool) -> dict[str, Any]:
    """An endpoint of an EndpointSlice, with these of its conditions."""
    written: dict[str, Any] = {"addresses": [address], "conditions": conditions}
    if pod:
        written["targetRef"] = {"kind": "Pod", "name": pod, "uid": f"uid-{pod}"}
        written |= {"nodeName": f"node-of-{pod}", "zone": "zone-a"}
    return written


def assets() -> Path:
    """The directory that KUBEBUILDER_ASSETS names, as other projects' tests do; the current one without."""
    return Path(os.environ.get("KUBEBUILDER_ASSETS", ""))


def binary(name: str) -> str | None:
    """Where `name` is: in the directory KUBEBUILDER_ASSETS, or on PATH."""
    return shutil.which(name, path=os.environ.get("KUBEBUILDER_ASSETS")) or shutil.which(name)


class ApiServer:
    """One API server over restarts. `kubeconfig` is for a user, by its token."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.address = free_address()
        self._etcd_address = free_address()
        self._authority = Authority()
        pair = self._authority.issue([HOST])
        files = {"ca.crt": self._authority.pem, "tls.crt": pair.certificate, "tls.key": pair.key}
        key = rsa.generate_private_key(65537, 2048)
        files["accounts.key"] = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        files["tokens.csv"] = f'{ADMIN},admin,1,"system:masters"\n{PICKER},picker,2,"pickers"\n'.encode()
        for name, content in files.items():
            (directory / name).write_bytes(content)
        self._etcd = self._start_etcd()
        self.process = self._start()

    def _start_etcd(self) -> Process:
        etcd = binary("etcd")
        assert etcd is not None
        peer = f"http://{free_address()}"
        url = f"http://{self._etcd_address}"
        return Process(
            "etcd",
            [
                etcd,
                *("--data-dir", str(self._directory / "etcd")),
                *("--listen-client-urls", url, "--advertise-client-urls", url),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"default={peer}", "--unsafe-no-fsync", "--log-level", "warn"),
            ],
            self._directory / "etcd.log",
        )

    def _start(self) -> Process:
        apiserver = binary("kube-apiserver")
        assert apiserver is not None
        host, _, port = self.address.rpartition(":")
        file = self._directory.joinpath
        return Process(
            "kube-apiserver",
            [
                apiserver,
                f"--etcd-servers=http://{self._etcd_address}",
                f"--bind-address={host}",
                f"--secure-port={port}",
                f"--tls-cert-file={file('tls.crt')}",
                f"--tls-private-key-file={file('tls.key')}",
                f"--token-auth-file={file('tokens.csv')}",
                "--authorization-mode=RBAC",
                "--service-account-issuer=https://test",
                f"--service-account-key-file={file('accounts.key')}",
                f"--service-account-signing-key-file={file('accounts.key')}",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--disable-admission-plugins=ServiceAccount",
                # Watches then begin in etcd, so that what it has forgotten is forgotten.
                "--watch-cache=false",
            ],
            self._directory / "apiserver.log",
        )

    def kubeconfig(self, token: str, server: str | None = None) -> Path:
        """A file for the user of this token; `server` is where to connect instead."""
        # KUBECONFIG may list several files with colons between.
        path = self._directory / f"kubeconfig-{token}-{server or ''}".replace(":", "-")
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                    "users": [{"name": "test", "user": {"token": token}}],
                    "clusters": [
                        {
                            "name": "test",
                            "cluster": {
                                "server": f"https://{server or self.address}",
                                "certificate-authority": str(self._directory / "ca.crt"),
                            },
                        }
                    ],
                }
            )
        )
        return path

    async def ready(self) -> None:
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:

            async def answers() -> bool:
                try:
                    return (await client.get(f"https://{self.address}/readyz")).status_code == 200
                except httpx.TransportError:
                    return False

            await eventually(answers, "kube-apiserver is ready", 120, process=self.process)

    async def restart(self) -> None:
        """Gone without a word, and back."""
        self.process.kill()
        self.process = self._start()
        await self.ready()

    async def forget(self) -> None:
        """Have etcd forget all but what is now."""
        async with httpx.AsyncClient(base_url=f"http://{self._etcd_address}/v3", trust_env=False) as etcd:
            now = (await etcd.post("/kv/range", json={"key": "AA=="})).json()["header"]["revision"]
            answer = await etcd.post("/kv/compaction", json={"revision": now, "physical": True})
        answer.raise_for_status()

    def kill(self) -> None:
        self.process.kill()
        self._etcd.kill()

    @property
    def ca(self) -> Path:
        """The certificate of the authority that issued the server's."""
        return self._directory / "ca.crt"

    def log_tail(self) -> str:
        return self.process.tail()


class Namespace:
    """What a test writes, in a namespace of its own."""

    def __init__(self, name: str, client: api.ApiClient) -> None:
        self.name = name
        self.core = api.CoreV1Api(client)
        self.rbac = api.RbacAuthorizationV1Api(client)
        self.discovery = api.DiscoveryV1Api(client)
        self._objects = api.CustomObjectsApi(client)
        self._kind = {
            "group": "inference.networking.k8s.io",
            "version": "v1",
            "namespace": name,
            "plural": "inferencepools",
        }

    async def pool(self, labels: dict[str, str], ports: list[int], name: str = "llama") -> None:
        """Create the InferencePool, or change it."""
        spec = {
            "selector": {"matchLabels": labels},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
        }
        body = {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": {"name": name},
            "spec": spec,
        }
        try:
            await self._objects.create_namespaced_custom_object(body=body, **self._kind)
        except api.ApiException as error:
            if error.status != 409:
                raise
            await self._objects.patch_namespaced_custom_object(
                name=name,
                body=[{"op": "replace", "path": "/spec", "value": spec}],
                _content_type="application/json-patch+json",
                **self._kind,
            )

    async def delete_pool(self, name: str = "llama") -> None:
        await self._objects.delete_namespaced_custom_object(name=name, **self._kind)

    async def pod(
        self,
        name: str,
        address: str = "",
        *,
        ready: bool = True,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
    ) -> None:
        """Create a pod on a node that does not exist, and be the kubelet that says how it is."""
        body = {
            "metadata": {
                "name": name,
                "labels": {"app": "llama"} if labels is None else labels,
                "annotations": annotations or {},
            },
            "spec": {"nodeName": "node-1", "containers": [{"name": "vllm", "image": "vllm"}]},
        }
        await self.core.create_namespaced_pod(self.name, body)
        await self.status(name, address, ready=ready)

    async def status(self, name: str, address: str = "", *, ready: bool) -> None:
        status: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
        if address:
            status |= {"podIP": address, "podIPs": [{"ip": address}]}
        await self.core.patch_namespaced_pod_status(name, self.name, {"status": status})

    async def stop(self, name: str, seconds: int) -> None:
        """Tell a pod to stop. With 0 seconds it is gone, else it stays, as nobody runs it."""
        await self.core.delete_namespaced_pod(name, self.name, grace_period_seconds=seconds)

    async def slice(
        self,
        name: str,
        *endpoints: dict[str, Any],
        service: str = "llama",
        manager: str = "endpointslice-controller.k8s.io",
        family: str = "IPv4",
        ports: Sequence[dict[str, Any]] = ({"name": "http", "port": 8000},),
    ) -> None:
        """Be one who writes EndpointSlices: create this one, or replace it."""
        labels = {
            "kubernetes.io/service-name": service,
            "endpointslice.kubernetes.io/managed-by": manager,
        }
        body = {
            "metadata": {"name": name, "labels": labels},
            "addressType": family,
            "endpoints": list(endpoints),
            "ports": list(ports),
        }
        try:
            await self.discovery.create_namespaced_endpoint_slice(self.name, body)
        except api.ApiException as error:
            if error.status != 409:
                raise
            await self.discovery.replace_namespaced_endpoint_slice(name, self.name, body)

    async def delete_slice(self, name: str) -> None:
        await self.discovery.delete_namespaced_endpoint_slice(name, self.name)

    async def config_map(self, data: dict[str, str], name: str = "llama-routing") -> None:
        """Create the ConfigMap, or replace it."""
        body = {"metadata": {"name": name}, "data": data}
        try:
            await self.core.create_namespaced_config_map(self.name, body)
        except api.ApiException as error:
            if error.status != 409:
                raise
            await self.core.replace_namespaced_config_map(name, self.name, body)

    async def delete_config_map(self, name: str = "llama-routing") -> None:
        await self.core.delete_namespaced_config_map(name, self.name)

    async def allow(self, *rules: str) -> None:
        """What a picker has to be allowed, and no more: rules of a Role in YAML."""
        group = "rbac.authorization.k8s.io"
        read = [yaml.safe_load(rule) for rule in rules or (INFERENCE_POOLS, PODS)]
        await self.rbac.create_namespaced_role(self.name, {"metadata": {"name": "picker"}, "rules": read})
        await self.rbac.create_namespaced_role_binding(
            self.name,
            {
                "metadata": {"name": "picker"},
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "picker"},
                "subjects": [
                    {"apiGroup": group, "kind": "User", "name": "picker"},
                    {"kind": "ServiceAccount", "name": "router", "namespace": self.name},
                ],
            },
        )

    async def forbid(self) -> None:
        """Take it away again."""
        await self.rbac.delete_namespaced_role(name="picker", namespace=self.name)
        await self.rbac.delete_namespaced_role_binding(name="picker", namespace=self.name)

    async def token(self) -> str:
        """A token of the ServiceAccount `router`, as kubelet mounts it into a pod."""
        await self.core.create_namespaced_service_account(self.name, {"metadata": {"name": "router"}})
        granted = await self.core.create_namespaced_service_account_token("router", self.name, {"spec": {}})
        return str(granted.status.token)


@asynccontextmanager
async def admin(server: ApiServer) -> AsyncIterator[api.ApiClient]:
    client = await new_client_from_config(str(server.kubeconfig(ADMIN)))
    try:
        yield client
    finally:
        await client.close()


async def define(server: ApiServer) -> None:
    """Make the kinds of gateways, InferencePools and monitoring known."""
    definitions = kinds.read(assets())
    async with admin(server) as client:
        known = api.ApiextensionsV1Api(client)
        for definition in definitions:
            await known.create_custom_resource_definition(definition)

        async def established() -> bool:
            listed = await known.list_custom_resource_definition()
            return len(listed.items) == len(definitions) and all(
                any(
                    one.type == "Established" and one.status == "True" for one in item.status.conditions or ()
                )
                for item in listed.items
            )

        await eventually(established, "the kinds are known", 60, process=server.process)


class Link:
    """A TCP connection to the API server that can be cut."""

    def __init__(self, target: str) -> None:
        self.address = free_address()
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0

    async def open(self) -> None:
        host, _, port = self.address.rpartition(":")
        self._server = await asyncio.start_server(self._serve, host, int(port))

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        host, _, port = self._target.rpartition(":")
        try:
            upstream = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, upstream[1]}
        try:
            await asyncio.gather(_copy(reader, upstream[1]), _copy(upstream[0], writer))
        except OSError:
            pass
        finally:
            for one in (writer, upstream[1]):
                self._writers.discard(one)
                one.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.transport.abort()


def missing() -> str:
    """Why there is no API server to test with; empty if there is one."""
    lacking = [name for name in ("kube-apiserver", "etcd", "kubectl") if binary(name) is None]
    if not (assets() / kinds.FILE).exists():
        lacking.append(kinds.FILE)
    if not lacking:
        return ""
    return (
        f"no {' and no '.join(lacking)}: name their directory in KUBEBUILDER_ASSETS, or build them with"
        " python -m tests.apiserver.build DIRECTORY"
    )

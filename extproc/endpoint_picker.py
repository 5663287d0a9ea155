"""The settings of an Endpoint Picker: what flags say, over what a configuration file says, over defaults.

The flags are those of the reference Endpoint Picker, so that it can be replaced in a Deployment by changing
the image. An Endpoint Picker serves one InferencePool, so its configuration has one pool, which takes every
request.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from extproc.address import Address
from extproc.config import (
    Config,
    ConfigError,
    Problem,
    TlsConfig,
    made,
)

GROUP = "inference.networking.k8s.io"
"""API group of the InferencePools that are understood, in version v1."""

GRPC_PORT, HEALTH_PORT, METRICS_PORT = 9002, 9003, 9090
"""Ports of the reference Endpoint Picker."""

COMMAND_LINE = "command line"
"""Stands for a file's name in errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What the command line says; None or empty where it says nothing."""

    pool_name: str | None = None
    pool_namespace: str | None = None
    endpoint_selector: str | None = None
    endpoint_target_ports: tuple[int, ...] = ()
    endpoints: tuple[str, ...] = ()
    endpoints_file: Path | None = None
    grpc_port: int | None = None
    grpc_health_port: int | None = None
    metrics_port: int | None = None
    secure_serving: bool | None = None
    cert_path: Path | None = None
    """A directory with `tls.crt` and `tls.key`."""
    endpoint_subset: bool | None = None
    log_format: Literal["json", "console"] | None = None
    log_level: Literal["debug", "info", "warning", "error"] | None = None


def is_foreign(text: str) -> bool:
    """Whether a configuration is of another Endpoint Picker: a Kubernetes-style object, with kind or
    apiVersion.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError:
        return False
    return isinstance(document, dict) and bool({"kind", "apiVersion"} & document.keys())


def settings(flags: Flags, base: Config | None = None) -> Config:
    """The configuration to run, from `flags` over `base`.

    Raises `extproc.config.ConfigError` that names the flag or the key, what is wrong and what to write.
    """
    given = {} if base is None else {name: getattr(base, name) for name in base.model_fields_set}
    log = {} if base is None else {name: getattr(base.log, name) for name in base.log.model_fields_set}
    log |= {
        name: value
        for name, value in (("format", flags.log_format), ("level", flags.log_level))
        if value is not None
    }

    def listening(name: str, port: int | None, default: int) -> object:
        return (
            given[name] if port is None and name in given else _everywhere(default if port is None else port)
        )

    wanted = {
        **given,
        "listen": listening("listen", flags.grpc_port, GRPC_PORT),
        "health": listening("health", flags.grpc_health_port, HEALTH_PORT),
        "metrics": listening("metrics", flags.metrics_port, METRICS_PORT),
        "tls": _tls(flags, None if base is None else base.tls, "tls" in given),
        "log": log,
        "pools": [_pool(flags, base)],
    }
    try:
        return made(wanted, COMMAND_LINE)
    except ConfigError as error:
        raise ConfigError(COMMAND_LINE, [_by_flag(problem) for problem in error.problems]) from None


def _everywhere(port: int) -> Address:
    return Address("::" if socket.has_dualstack_ipv6() else "0.0.0.0", port)


def _tls(flags: Flags, base: TlsConfig | None, said: bool) -> dict[str, object] | TlsConfig | None:
    """TLS with the certificate of `--cert-path`, else as the file says, else with one of its own."""
    if flags.secure_serving is False:
        return None
    if flags.cert_path is not None:
        return {
            "cert": flags.cert_path / "tls.crt",
            "key": flags.cert_path / "tls.key",
            "client_ca": None if base is None else base.client_ca,
        }
    if base is not None or (said and flags.secure_serving is None):
        return base
    return {"self_signed": True}


def _pool(flags: Flags, base: Config | None) -> dict[str, object]:
    """The one pool. It takes every request: those of other pools go to other Endpoint Pickers."""
    fields: dict[str, object] = {}
    if base is not None:
        if len(base.pools) != 1:
            raise _wrong("--config-file", f"has {len(base.pools)} pools; an Endpoint Picker serves one")
        pool = base.pools[0]
        fields = {name: getattr(pool, name) for name in pool.model_fields_set - {"match"}}
    endpoints = _endpoints(flags)
    if endpoints is not None:
        fields |= {"endpoints": endpoints, "name": _name(flags)}
    elif "endpoints" not in fields:
        raise _wrong(
            "--pool-name",
            "is missing: name the InferencePool, or give --endpoint-selector, --endpoints or"
            " --endpoints-file",
        )
    if flags.endpoint_subset is not None:
        fields["endpoint_subset"] = flags.endpoint_subset
    return fields


def _endpoints(flags: Flags) -> dict[str, object] | None:
    """Where endpoints come from; endpoints that are named go before those that are to be looked up."""
    if flags.endpoints and flags.endpoints_file is not None:
        raise _wrong("--endpoints", "excludes --endpoints-file: keep one")
    if flags.pool_name and flags.endpoint_selector:
        raise _wrong("--pool-name", "excludes --endpoint-selector: keep one")
    if flags.endpoints:
        return {"static": flags.endpoints}
    if flags.endpoints_file is not None:
        return {"file": flags.endpoints_file}
    if flags.endpoint_selector:
        return {
            "pods": {
                "selector": flags.endpoint_selector,
                "ports": flags.endpoint_target_ports,
                "namespace": flags.pool_namespace,
            }
        }
    if flags.pool_name:
        return {"inferencePool": {"name": flags.pool_name, "namespace": flags.pool_namespace}}
    return None


def _name(flags: Flags) -> str:
    """The pool's name in metrics and logs: `namespace/name`, as Kubernetes users write it."""
    name = flags.pool_name or re.sub(r"[^A-Za-z0-9._-]+", "-", flags.endpoint_selector or "endpoints").strip(
        "-"
    )
    return f"{flags.pool_namespace}/{name}" if flags.pool_namespace else name


_FLAG_OF = {
    "pools[0].endpoints.static": "--endpoints",
    "pools[0].endpoints.inferencePool.name": "--pool-name",
    "pools[0].endpoints.inferencePool.namespace": "--pool-namespace",
    "pools[0].endpoints.pods.namespace": "--pool-namespace",
    "pools[0].endpoints.pods.selector": "--endpoint-selector",
    "pools[0].endpoints.pods.ports": "--endpoint-target-ports",
    "listen": "--grpc-port",
    "health": "--grpc-health-port",
    "metrics": "--metrics-port",
}


def _by_flag(problem: Problem) -> Problem:
    """A problem by the name of the flag that says what is wrong: the file was found valid before."""
    return problem._replace(path=_FLAG_OF.get(re.sub(r"\[[0-9]+\]$", "", problem.path), problem.path))


def _wrong(flag: str, message: str) -> ConfigError:
    return ConfigError(COMMAND_LINE, [Problem(flag, None, None, message)])

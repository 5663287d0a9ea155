"""The configuration file: its keys, what each may hold, and what to say when one is wrong.

The models below are the single source: `extproc check`, the reloader, the key table in docs/configuration.md
and every error message are derived from their fields. In a file keys are written in camelCase; in Python the
same fields are snake_case. All models are frozen: a changed file makes a new `Config`.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from extproc import strict_yaml
from extproc.address import Address, parse_address, parse_endpoint

MAX_FILE_BYTES = 4 * 1024 * 1024
"""A larger file is refused unread: 4 MiB holds some 100,000 static endpoints."""

KeyPath = strict_yaml.Path


# --- Values ---


class Allowed(str):
    """Field metadata: what a key may hold, in words, for error messages and the key table."""


def _text_of(value: object, kind: str) -> str:
    if not isinstance(value, str):
        raise ValueError(
            f"must be text: {kind}; put it in quotes" if value is not None else f"must be {kind}"
        )
    return value


def _listen_address(value: object) -> Address:
    return value if isinstance(value, Address) else parse_address(_text_of(value, "host:port"))


def _tcp_address(value: object) -> Address | None:
    if value is None:
        return None
    address = _listen_address(value)
    if address.is_unix:
        raise ValueError(
            "must be host:port or [v6]:port, or null to turn it off: probes and scrapes come over TCP"
        )
    return address


_DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s|m|h)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(value: object) -> float:
    if isinstance(value, str) and (form := _DURATION.fullmatch(value)):
        return float(form["number"]) * _UNIT_SECONDS[form["unit"]]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError("must be a duration: 10s, 500ms, 2m or a number of seconds")


def _prefix_length(value: object) -> Literal["auto"] | int:
    if value == "auto":
        return "auto"
    if type(value) is int and 1024 <= value <= 65536:
        return value
    raise ValueError("must be auto or a whole number from 1024 to 65536")


def _balance(value: object) -> object:
    if value is True:
        return Balance()
    if value is False:
        return None
    if value is None:
        raise ValueError("must be true, false or a mapping with the keys factor, floor")
    return value


def _engine_metrics(value: object) -> object:
    if value is True:
        return EngineMetricsConfig()
    if value is False:
        return None
    if value is None:
        raise ValueError("must be true, false or a mapping, whose keys may all be left out")
    return value


def _slow_start(value: object) -> object:
    if value is True:
        return SlowStartConfig()
    if value is False:
        return None
    if value is None:
        raise ValueError("must be true, false or a mapping with the keys window, coldWindow, leastShare")
    return value


def _loopback_address(value: object) -> Address | None:
    if value is None:
        return None
    address = _listen_address(value)
    try:
        loopback = ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            "must be a loopback address such as 127.0.0.1:9005: it answers whoever can call it, without TLS"
        )
    return address


def _service_port(value: object) -> str | int:
    if type(value) is int and 1 <= value <= 65535:
        return value
    if isinstance(value, str) and re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", value):
        if value.isdecimal():
            raise ValueError("must be a name, or a number without quotes")
        return value
    raise ValueError("must be a port's name, or a whole number from 1 to 65535")


def _own_tcp_address(value: object) -> Address:
    address = _listen_address(value)
    if address.is_unix:
        raise ValueError("must be host:port or [v6]:port: other replicas call over TCP")
    return address


def _peer_address(value: object) -> Address:
    address = _own_tcp_address(value)
    if not address.port or address.host in ("0.0.0.0", "::"):
        raise ValueError("must name a host and port that can be called")
    return address


def _pattern(value: object) -> str:
    text = _text_of(value, "a pattern such as llm-*")
    if not text:
        raise ValueError('must not be empty; "*" matches everything')
    return text


def _path(value: object, info: ValidationInfo) -> Path | None:
    """A path as it is written, starting at the configuration's directory where it is relative."""
    if value is None or isinstance(value, Path):
        return value
    text = _text_of(value, "a path")
    if not text or "\0" in text:
        raise ValueError("must be a path")
    return Path((info.context or {}).get("directory", ""), text)


def _endpoint(value: object) -> str:
    return parse_endpoint(_text_of(value, "ip:port"))


_AS_TEXT = PlainSerializer(lambda value: None if value is None else str(value), return_type=str | None)

ListenAddress = Annotated[
    Address, BeforeValidator(_listen_address), _AS_TEXT, Allowed("host:port, [v6]:port or unix:/path")
]
TcpAddress = Annotated[
    Address | None, BeforeValidator(_tcp_address), _AS_TEXT, Allowed("host:port, [v6]:port or null")
]
LoopbackAddress = Annotated[
    Address | None,
    BeforeValidator(_loopback_address),
    _AS_TEXT,
    Allowed("127.0.0.1:port, [::1]:port or null"),
]
OwnTcpAddress = Annotated[
    Address, BeforeValidator(_own_tcp_address), _AS_TEXT, Allowed("host:port or [v6]:port")
]
PeerAddress = Annotated[Address, BeforeValidator(_peer_address), _AS_TEXT]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Pattern = Annotated[str, BeforeValidator(_pattern)]
OptionalPattern = Annotated[
    str | None,
    BeforeValidator(lambda value: None if value is None else _pattern(value)),
    Allowed("a pattern: * any characters, ? one, [ab] one of these"),
]
Endpoint = Annotated[str, BeforeValidator(_endpoint)]
Whole = Annotated[int, Strict()]
Port = Annotated[Whole, Ge(1), Le(65535)]
_DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\z"
_DNS_NAME = r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?\z"


class Strategy(StrEnum):
    """How a pool picks an endpoint."""

    RANDOM = "RANDOM"
    LEAST_OUTSTANDING_REQUESTS = "LEAST_OUTSTANDING_REQUESTS"
    PREFIX_AWARE = "PREFIX_AWARE"


# --- Keys ---

_AFTER_RESTART: JsonDict = {"restart": True}
_SETTING: JsonDict = {"setting": True}
"""May also stand in a pool's `settingsFrom`. Whoever may write that must not be able, by it, to read files of
the router or to send requests elsewhere."""


class _Section(BaseModel):
    """A mapping in the file. Python code may use names or aliases; a file only aliases (see `parse`)."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        serialize_by_alias=True,
        extra="forbid",
        frozen=True,
    )


class LogConfig(_Section):
    """What is logged, and how."""

    format: Literal["auto", "json", "console"] = Field(
        default="auto",
        description="One JSON object a line, or text for people. auto: console on a terminal, else json.",
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe level logged."
    )


class Match(_Section):
    """Which requests a pool takes."""

    route: OptionalPattern = Field(
        None, description="Pattern for Envoy's route name (request attribute `xds.route_name`)."
    )
    metadata: str | None = Field(
        default=None,
        min_length=1,
        description="Exact value of the gRPC initial metadata `x-warmroute-pool` that the gateway sends.",
    )
    models: Annotated[tuple[Pattern, ...], Allowed("a list of patterns")] = Field(
        default=(),
        description="Patterns for the model that the body names, which chooses only among the pools that the"
        " gateway's side of the match allows. A pool that lists the model comes before one without models.",
    )

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.route is not None and self.metadata is not None:
            raise ValueError("route and metadata exclude each other: keep one")
        if self.route is None and self.metadata is None and not self.models:
            raise ValueError("must name a route, a metadata value or models")
        return self

    def allows(self, route: str, hint: str) -> bool:
        """The gateway's side: whether the pool may take requests of this route that come with this hint (gRPC
        metadata `x-warmroute-pool`); either may be empty."""
        if self.route is not None and not fnmatchcase(route, self.route):
            return False
        return self.metadata is None or self.metadata == hint

    def lists(self, model: str) -> bool:
        """Whether `models` names the body's model."""
        return bool(model) and any(fnmatchcase(model, glob) for glob in self.models)

    def covers(self, later: Match) -> bool:
        """Whether a pool with this match leaves none of `later`'s requests to it.

        A pool that names the body's model comes before one without models, whatever their order; otherwise
        the first in the file comes first. May say no where it is hard to tell.
        """
        if self.metadata is not None:
            if self.metadata != later.metadata:
                return False
        elif self.route is not None and (later.route is None or not _covers(self.route, later.route)):
            return False
        if not self.models or not later.models:
            return not self.models and not later.models
        return all(any(_covers(mine, its) for mine in self.models) for its in later.models)


def _covers(wide: str, narrow: str) -> bool:
    """Whether pattern `wide` matches all that `narrow` does.

    With * as its only wildcard, `wide` can match the text of `narrow` only by absorbing every wildcard in it.
    """
    if wide == narrow or wide == "*":
        return True
    return not set(wide) & set("?[]") and not set(narrow) & set("[]") and fnmatchcase(narrow, wide)


class Balance(_Section):
    """The relative bound of the spill rule: leave the first choice at max(factor x mean in-flight, floor)."""

    factor: float = Field(
        default=1.25, gt=1, le=100, description="Times the mean in-flight count of the pool's endpoints."
    )
    floor: Whole = Field(
        default=8, ge=1, le=1024, description="In-flight requests below which the bound never spills."
    )


class SlowStartConfig(_Section):
    """How endpoints that join a pool are eased in."""

    window: Annotated[Seconds, Allowed("a duration up to 1h")] = Field(
        default=30.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Time over which the share of an endpoint that joins grows to a whole one. 0s: at once.",
    )
    cold_window: Annotated[Seconds, Allowed("a duration up to 1h")] = Field(
        default=120.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="The same of an endpoint on a node that is not prepared, as `file` or `nodeCache` says.",
    )
    least_share: float = Field(
        default=0.1, gt=0, le=1, description="The share that it begins with; 1 is a whole one."
    )


class Shed(_Section):
    """Refuse requests with 429 rather than queue them."""

    max_in_flight: Whole = Field(
        ge=1, le=1_000_000, description="Answer 429 when every endpoint has this many requests in flight."
    )


_KUBERNETES_NAME = Annotated[str, Allowed("a name: lower-case letters, digits, - and .")]
_KUBERNETES_NAMESPACE = Annotated[str | None, Allowed("a name: lower-case letters, digits and -")]
_NAMESPACE = Field(
    default=None,
    pattern=_DNS_LABEL,
    description="Its namespace. Absent: that of this process's pod, or of the kubeconfig's context.",
)


class InferencePoolConfig(_Section):
    """A Kubernetes InferencePool (`inference.networking.k8s.io/v1`)."""

    name: _KUBERNETES_NAME = Field(
        pattern=_DNS_NAME,
        description="Its name. Each ready pod that it selects is an endpoint, per target port.",
    )
    namespace: _KUBERNETES_NAMESPACE = _NAMESPACE


class PodsConfig(_Section):
    """Kubernetes pods, without an InferencePool."""

    selector: Annotated[str, Allowed("a label selector: app=vllm,tier!=test")] = Field(
        pattern=r"^[A-Za-z0-9._/=!,() -]{1,2000}\z",
        description="Which pods; each that is ready is an endpoint.",
    )
    ports: Annotated[tuple[Port, ...], Allowed("a list of 1 to 8 ports")] = Field(
        min_length=1, max_length=8, description="The engine's ports; each is an endpoint of its own."
    )
    namespace: _KUBERNETES_NAMESPACE = _NAMESPACE


class ServiceConfig(_Section):
    """A Kubernetes Service, by its EndpointSlices (`discovery.k8s.io/v1`)."""

    name: Annotated[str, Allowed("a name: lower-case letters, digits and -")] = Field(
        pattern=_DNS_LABEL,
        description="Its name. Each ready endpoint in its EndpointSlices is one, whoever writes them.",
    )
    port: Annotated[
        str | int, BeforeValidator(_service_port), Allowed("a port's name, or a number from 1 to 65535")
    ] = Field(
        description="The name that the Service gives the port, or the number on which the engines listen"
        " (its targetPort)."
    )
    namespace: _KUBERNETES_NAMESPACE = _NAMESPACE
    ip_family: Literal["IPv4", "IPv6"] = Field(
        default="IPv4", description="The address that is taken of a pod with one of each."
    )


class EndpointsConfig(_Section):
    """Where the pool's endpoints come from: exactly one of these."""

    static: Annotated[tuple[Endpoint, ...] | None, Allowed("a list of ip:port, IPv6 in brackets")] = Field(
        default=None,
        description="The endpoints themselves. IP addresses, never names: Envoy matches a pin by address.",
    )
    file: Annotated[Path | None, Allowed("a path")] = Field(
        default=None,
        description="A YAML file with a list of endpoints, watched. A relative path starts at this file's"
        " directory.",
    )
    service: ServiceConfig | None = Field(
        default=None, description="A Kubernetes Service, watched: its ready endpoints. See kubernetes.md."
    )
    inference_pool: InferencePoolConfig | None = Field(
        default=None, description="A Kubernetes InferencePool, watched: its ready pods."
    )
    pods: PodsConfig | None = Field(
        default=None, description="Kubernetes pods, watched: those that are ready."
    )

    @field_validator("static")
    @classmethod
    def _no_endpoint_twice(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is None:
            return None
        if not value:
            raise ValueError("must name one endpoint at least")
        if twice := [address for address, times in Counter(value).items() if times > 1]:
            raise ValueError(f"names {', '.join(twice)} more than once")
        return value

    @field_validator("file", mode="before")
    @classmethod
    def _relative_to_the_configuration(cls, value: object, info: ValidationInfo) -> Path | None:
        return _path(value, info)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [self.static, self.file, self.service, self.inference_pool, self.pods]
        if sum(one is not None for one in given) != 1:
            raise ValueError(f"must have exactly one of the keys {', '.join(_aliases(EndpointsConfig))}")
        return self


class EngineTlsConfig(_Section):
    """How engines that are asked over TLS are verified."""

    ca: Annotated[Path | None, Allowed("a path")] = Field(
        default=None,
        description="PEM file with the authorities that issue the engines' certificates, watched. Absent:"
        " those of the system.",
    )
    server_name: str | None = Field(
        default=None,
        min_length=1,
        description="Name that every engine's certificate must be for. Absent: the endpoint's IP address.",
    )
    insecure_skip_verify: Annotated[bool, Strict(), Allowed("true or false")] = Field(
        default=False, description="Accept any certificate. Whoever answers at that address gets the token."
    )

    @field_validator("ca", mode="before")
    @classmethod
    def _relative_to_the_configuration(cls, value: object, info: ValidationInfo) -> Path | None:
        return _path(value, info)


class EngineMetricsConfig(_Section):
    """How the engines of a pool are asked for their metrics."""

    path: Annotated[str, Allowed("a path that begins with /, in ASCII without spaces or #")] = Field(
        default="/metrics",
        pattern=r"^/[!\"$-~]*\z",
        max_length=1024,
        description="Where the metrics page is. trtllm-serve: `/prometheus/metrics`.",
    )
    port: Annotated[Whole | None, Allowed("a whole number from 1 to 65535")] = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of the metrics page. Absent: the endpoint's own. Triton: 8002.",
    )
    scheme: Literal["http", "https"] = Field(default="http", description="How engines are asked.")
    interval: Annotated[Seconds, Allowed("a duration from 100ms to 1m")] = Field(
        default=1.0,
        ge=0.1,
        le=60,
        allow_inf_nan=False,
        description="Longest time between two reads of an engine that has requests.",
    )
    idle_interval: Annotated[Seconds, Allowed("a duration from 100ms to 5m")] = Field(
        default=5.0,
        ge=0.1,
        le=300,
        allow_inf_nan=False,
        description="The same of an engine that has none; at least `interval`.",
    )
    timeout: Annotated[Seconds, Allowed("a duration from 50ms to 1m")] = Field(
        default=3.0,
        ge=0.05,
        le=60,
        allow_inf_nan=False,
        description="Longest time that one read may take.",
    )
    token_file: Annotated[Path | None, Allowed("a path")] = Field(
        default=None,
        description="File with a bearer token that engines are shown, watched. A relative path starts at this"
        " file's directory.",
    )
    tls: EngineTlsConfig | None = Field(
        default=None,
        description="How engines are verified, with `scheme: https`. Absent: all at its default.",
    )

    @field_validator("token_file", mode="before")
    @classmethod
    def _relative_to_the_configuration(cls, value: object, info: ValidationInfo) -> Path | None:
        return _path(value, info)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.idle_interval < self.interval:
            raise ValueError(
                f"idleInterval ({self.idle_interval:g}s) must not be below interval ({self.interval:g}s)"
            )
        if self.tls is not None and self.scheme != "https":
            raise ValueError("tls needs scheme: https")
        return self


class ConfigMapConfig(_Section):
    """A key of a Kubernetes ConfigMap."""

    name: _KUBERNETES_NAME = Field(pattern=_DNS_NAME, description="Its name.")
    namespace: _KUBERNETES_NAMESPACE = _NAMESPACE
    key: Annotated[str, Allowed("letters, digits and . _ -, at most 253")] = Field(
        default="settings.yaml", pattern=r"^[-._a-zA-Z0-9]{1,253}\z", description="The key in its `data`."
    )

    @property
    def title(self) -> str:
        """What it is called in messages: `ConfigMap llama-routing[settings.yaml]`."""
        return f"ConfigMap {self.name}[{self.key}]"


class SettingsFromConfig(_Section):
    """Where settings of a pool are kept beside the file."""

    config_map: ConfigMapConfig = Field(
        description="A Kubernetes ConfigMap, read through the API and watched: not mounted. It may be absent."
    )


class PoolConfig(_Section):
    """The endpoints of one model service, and how to pick among them."""

    name: Annotated[str, Allowed("letters, digits and . _ / -, at most 128")] = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}\z", description="Name in metrics and logs; unique."
    )
    match: Match | None = Field(
        default=None,
        description="Which requests the pool takes. Several pools need one each; a lone pool without: all.",
    )
    strategy: Strategy = Field(
        default=Strategy.PREFIX_AWARE, description="How an endpoint is picked.", json_schema_extra=_SETTING
    )
    prefix_length: Annotated[
        Literal["auto"] | int,
        BeforeValidator(_prefix_length),
        Allowed("auto or a whole number from 1024 to 65536"),
    ] = Field(
        default="auto",
        description="Characters of message text (bytes of a raw body) that make the prefix. auto: the"
        " whole prompt, weighed by what each endpoint was sent. Read by PREFIX_AWARE.",
        json_schema_extra=_SETTING,
    )
    concurrency_threshold: Whole = Field(
        default=256,
        ge=1,
        le=1024,
        description="In-flight requests at which PREFIX_AWARE takes an endpoint only if every other has as"
        " many. The default is the batch of a vLLM engine (max_num_seqs): beyond it requests queue.",
        json_schema_extra=_SETTING,
    )
    balance: Annotated[Balance | None, BeforeValidator(_balance), Allowed("true, false or a mapping")] = (
        Field(
            default_factory=Balance,
            description="With a number as prefixLength: leave the first choice also when it is busier than"
            " the others by this bound. false: only at concurrencyThreshold.",
            json_schema_extra=_SETTING,
        )
    )
    slow_start: Annotated[
        SlowStartConfig | None, BeforeValidator(_slow_start), Allowed("true, false or a mapping")
    ] = Field(
        default_factory=SlowStartConfig,
        description="Ease in endpoints that join a pool which is running: their caches are empty.",
        json_schema_extra=_SETTING,
    )
    shed: Shed | None = Field(
        None,
        description="Refuse requests when all endpoints are full. Absent: never refuse.",
        json_schema_extra=_SETTING,
    )
    endpoint_subset: Annotated[bool, Strict(), Allowed("true or false")] = Field(
        default=True,
        description="Pick only among the endpoints that the gateway's metadata `envoy.lb.subset_hint` names,"
        " where it names some, and answer 503 if none of them is ready. A client's header is never read.",
    )
    engine_metrics: Annotated[
        EngineMetricsConfig | None, BeforeValidator(_engine_metrics), Allowed("true, false or a mapping")
    ] = Field(
        default_factory=EngineMetricsConfig,
        description="Read the engines' own metrics for their load. Where they cannot be read, and with false,"
        " load is what this router sent. Not read for RANDOM without shed, which asks for no load.",
    )
    node_cache: Annotated[bool, Strict(), Allowed("true or false")] = Field(
        default=True,
        description="With endpoints from Kubernetes: learn from the EndpointSlices that cacheprep publishes"
        " which of them run on nodes that have their weights. false: they are not looked at.",
    )
    endpoints: EndpointsConfig = Field(
        description="Where the endpoints come from: exactly one of these keys."
    )
    settings_from: SettingsFromConfig | None = Field(
        None,
        description="Where settings of this pool are kept that go before those of this file: kubernetes.md.",
    )


class RequestLogConfig(_Section):
    """A log of routed requests that `extproc replay` reads: hashes and lengths, no text."""

    path: Annotated[Path, Allowed("a path")] = Field(
        description="The file, one per router process; its directory must exist. A relative path starts at"
        " this file's directory."
    )
    max_bytes: Whole = Field(
        default=256 * 1024 * 1024,
        ge=1024 * 1024,
        le=1 << 40,
        description="Bytes at which a new file begins; the one before gets the ending `.1`.",
    )
    files: Whole = Field(default=4, ge=1, le=1000, description="Files kept, the newest included.")
    secret_file: Annotated[Path | None, Allowed("a path")] = Field(
        default=None,
        description="File with 16 random bytes at least, with which block keys are hashed. Logs of several"
        " routers can be replayed together only with the same ones. Absent: random ones for each process.",
    )
    sample: float = Field(default=1.0, gt=0, le=1, description="Share of requests that are logged.")

    @field_validator("path", "secret_file", mode="before")
    @classmethod
    def _relative_to_the_configuration(cls, value: object, info: ValidationInfo) -> Path | None:
        return _path(value, info)


class TlsConfig(_Section):
    """TLS on the ext_proc listener."""

    cert: Annotated[Path | None, Allowed("a path")] = Field(
        default=None,
        description="PEM file with the certificate, then its intermediates. Watched, as are the other two. A"
        " relative path starts at this file's directory.",
    )
    key: Annotated[Path | None, Allowed("a path")] = Field(
        default=None, description="PEM file with the certificate's private key, not encrypted."
    )
    client_ca: Annotated[Path | None, Allowed("a path")] = Field(
        default=None,
        description="PEM file with certificates of authorities. Clients must then show a certificate that one"
        " of them issued. Absent: clients show none.",
    )
    self_signed: Annotated[bool, Strict(), Allowed("true or false")] = Field(
        default=False,
        description="Instead of cert and key, make a pair at start. It encrypts, and proves to nobody who"
        " answers.",
    )

    @field_validator("cert", "key", "client_ca", mode="before")
    @classmethod
    def _relative_to_the_configuration(cls, value: object, info: ValidationInfo) -> Path | None:
        return _path(value, info)

    @model_validator(mode="after")
    def _one_pair(self) -> Self:
        if self.self_signed and (self.cert or self.key):
            raise ValueError("selfSigned excludes cert and key: keep one")
        if not self.self_signed and not (self.cert and self.key):
            raise ValueError("must have cert and key, or selfSigned: true")
        return self


class SharingConfig(_Section):
    """Replicas that tell each other their picks."""

    listen: OwnTcpAddress = Field(
        description="Where other replicas call (gRPC); by TLS, both sides with a certificate, if there is"
        " `tls`, else in plaintext."
    )
    plaintext: Annotated[bool, Strict(), Allowed("true or false")] = Field(
        default=False,
        description="Plaintext here, whatever `tls` says of the gateway's port. Who reaches the port can then"
        " read which block keys are where, and bias picks: have a NetworkPolicy admit replicas alone.",
    )
    service: Annotated[PeerAddress | None, Allowed("name:port")] = Field(
        default=None,
        description="A name that stands for all replicas, such as that of a headless Service, and the port of"
        " `listen`. Looked up every few seconds; this replica may be among them.",
    )
    peers: Annotated[tuple[PeerAddress, ...] | None, Allowed("a list of host:port")] = Field(
        default=None,
        description="Instead of service: the replicas, this one among them or not, so that all can have the"
        " same list.",
    )

    @field_validator("peers")
    @classmethod
    def _some_peer(cls, value: tuple[Address, ...] | None) -> tuple[Address, ...] | None:
        if value is not None and not value:
            raise ValueError("must name one replica at least; without any, leave sharing away")
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.service is None) == (self.peers is None):
            raise ValueError("must have exactly one of the keys service, peers")
        if self.service is not None and self.service.port != self.listen.port:
            raise ValueError(
                f"service has port {self.service.port} and listen {self.listen.port}: a headless Service"
                " leads to the pods themselves, so both must be the same"
            )
        return self


class Config(_Section):
    """The whole file."""

    listen: ListenAddress = Field(
        default=Address("127.0.0.1", 9002),
        description="Where the gateway's ext_proc streams come in (gRPC).",
        json_schema_extra=_AFTER_RESTART,
    )
    tls: TlsConfig | None = Field(
        default=None,
        description="TLS for `listen`. Absent: plaintext. `health` and `metrics` are plaintext always: the"
        " kubelet's gRPC probes speak nothing else.",
        json_schema_extra=_AFTER_RESTART,
    )
    health: TcpAddress = Field(
        default=Address("127.0.0.1", 9003),
        description="Where grpc.health.v1 is served. null: off.",
        json_schema_extra=_AFTER_RESTART,
    )
    metrics: TcpAddress = Field(
        default=Address("127.0.0.1", 9090),
        description="Where Prometheus scrapes /metrics (HTTP). null: off.",
        json_schema_extra=_AFTER_RESTART,
    )
    admin: LoopbackAddress = Field(
        default=None,
        description="Where `extproc explain --url` may ask what would become of a request (HTTP, on this"
        " machine only). null: off.",
        json_schema_extra=_AFTER_RESTART,
    )
    log: LogConfig = Field(default_factory=LogConfig, description="What is logged, and how.")
    request_log: RequestLogConfig | None = Field(
        None,
        description="Log what was picked for each prompt that was understood, in hashes, for"
        " `extproc replay`. Absent: off.",
    )
    drain_timeout: Annotated[
        Seconds, Allowed("a duration up to 1h: 10s, 500ms, 2m or a number of seconds")
    ] = Field(
        default=10.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Longest time from SIGTERM to the end of the process; streams left by then are cut.",
    )
    max_message_bytes: Whole = Field(
        default=16 * 1024 * 1024,
        ge=64 * 1024,
        le=1024 * 1024 * 1024,
        description="Bytes of the largest gRPC message taken. Must exceed the largest body that the gateway"
        " buffers: a larger one fails the stream.",
        json_schema_extra=_AFTER_RESTART,
    )
    sharing: SharingConfig | None = Field(
        default=None,
        description="Tell other replicas which prompts were sent where, in hashes. Absent: off.",
        json_schema_extra=_AFTER_RESTART,
    )
    pools: Annotated[tuple[PoolConfig, ...], Allowed("a list with one pool at least")] = Field(
        min_length=1, description="The pools, tried in this order."
    )

    @field_validator("pools")
    @classmethod
    def _pools_can_be_told_apart(cls, pools: tuple[PoolConfig, ...]) -> tuple[PoolConfig, ...]:
        if problems := list(_collisions(pools)):
            raise PydanticCustomError("pools", "the pools collide", {"problems": problems})
        return pools

    @model_validator(mode="after")
    def _each_port_its_own(self) -> Self:
        named = [
            ("listen", self.listen),
            ("health", self.health),
            ("metrics", self.metrics),
            ("admin", self.admin),
        ]
        if self.sharing is not None:
            named.append(("sharing.listen", self.sharing.listen))
        taken = [(key, address) for key, address in named if address is not None]
        problems = [
            (tuple(key.split(".")), f"is {address}, which collides with {other} {earlier}: give each its own")
            for at, (key, address) in enumerate(taken)
            for other, earlier in taken[:at]
            if address.overlaps(earlier)
        ]
        if problems:
            raise PydanticCustomError("addresses", "addresses collide", {"problems": problems})
        return self

    @model_validator(mode="after")
    def _replicas_know_each_other(self) -> Self:
        if self.sharing is None or self.tls is None or self.sharing.plaintext:
            return self
        instead = (
            "or set sharing.plaintext: true, where a NetworkPolicy admits replicas alone to"
            f" {self.sharing.listen}"
        )
        if self.tls.self_signed:
            said = (
                "excludes sharing by TLS: replicas could not tell each other from strangers; give cert, key"
                f" and clientCa, {instead}"
            )
            raise PydanticCustomError("tls", "self-signed", {"problems": [(("tls", "selfSigned"), said)]})
        if self.tls.client_ca is None:
            said = (
                "is required with sharing: replicas show each other certificates that its authorities"
                f" issued; give it, {instead}"
            )
            raise PydanticCustomError("tls", "no authority", {"problems": [(("tls", "clientCa"), said)]})
        return self


def _collisions(pools: Sequence[PoolConfig]) -> Iterator[tuple[KeyPath, str]]:
    names: dict[str, int] = {}
    for index, pool in enumerate(pools):
        if pool.name in names:
            yield (
                ("pools", index, "name"),
                f"is {pool.name!r}, the name of pools[{names[pool.name]}]: names are unique",
            )
        names.setdefault(pool.name, index)
        if pool.match is None:
            if len(pools) > 1:
                yield (
                    ("pools", index),
                    f"pool {pool.name!r} has no match, and there are {len(pools)} pools: give each a match"
                    ' ({route: "*"} in the last one takes what is left)',
                )
            continue
        for at, earlier in enumerate(pools[:index]):
            if earlier.match is not None and earlier.match.covers(pool.match):
                yield (
                    ("pools", index, "match"),
                    f"pool {pool.name!r} collides with pools[{at}] {earlier.name!r}, which comes first and"
                    " takes every request that this one could: narrow that match, add models, or change the"
                    " order",
                )
                break


# --- Reading ---


class Problem(NamedTuple):
    """One thing wrong with a file. `line` and `column` count from 1 or are None; `path` may be empty."""

    path: str
    line: int | None
    column: int | None
    message: str


class ConfigError(Exception):
    """A file cannot be used. `str()` is one line per problem, `file:line: field.path: problem and remedy`."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(self._line(problem) for problem in self.problems))

    def _line(self, problem: Problem) -> str:
        place = ":".join(
            str(part) for part in (self.source, problem.line, problem.column) if part is not None
        )
        return ": ".join(part for part in (place, problem.path, problem.message) if part)


def load(path: Path | str) -> Config:
    """Read and check a file. Raises ConfigError, with every problem in it."""
    path = Path(path)
    return parse(read_text(path), str(path), path.parent)


def read_text(path: Path) -> str:
    """The file's text. Raises ConfigError if it cannot be read, is too large or is not UTF-8."""

    def refuse(message: str) -> ConfigError:
        return ConfigError(str(path), [Problem("", None, None, message)])

    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise refuse("no such file") from None
    except IsADirectoryError:
        raise refuse("is a directory: name the file in it") from None
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise refuse(f"is larger than {MAX_FILE_BYTES} bytes: list endpoints in a file of their own")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refuse(f"is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}") from None


def parse(text: str, source: str, directory: Path | None = None) -> Config:
    """Check the text of a file; `source` names it in errors, relative paths start at `directory`.

    Raises ConfigError, with every problem in it.
    """
    document = _read(text, source)
    if document.value is None:
        raise ConfigError(source, [Problem("", None, None, "is empty: it needs pools at least")])
    if not isinstance(document.value, dict):
        said = f"must be a mapping of keys ({', '.join(_aliases(Config))}), is {_shown(document.value)}"
        raise ConfigError(source, [Problem("", 1, None, said)])
    try:
        return Config.model_validate(
            document.value, by_alias=True, by_name=False, context={"directory": directory or Path()}
        )
    except ValidationError as error:
        raise ConfigError(source, _problems(error, document.lines)) from None


def with_settings(pool: PoolConfig, text: str, source: str) -> PoolConfig:
    """`pool` with the keys that `text` holds in place of its own: those that may stand in `settingsFrom`.

    `source` names the text in errors. Raises ConfigError, with every problem in it.
    """
    fields = {key.path: key.field for key in keys(PoolConfig) if key.setting}
    document = _read(text, source)
    if document.value is None:
        return pool
    if not isinstance(document.value, dict):
        said = f"must be a mapping of keys ({', '.join(fields)}), is {_shown(document.value)}"
        raise ConfigError(source, [Problem("", 1, None, said)])
    known = {key: value for key, value in document.value.items() if key in fields}
    problems = [
        Problem(str(key), _line_of((key,), document.lines), None, _no_setting(str(key), list(fields)))
        for key in document.value
        if key not in fields
    ]
    try:
        checked = PoolConfig.model_validate(
            {**known, "name": pool.name, "endpoints": pool.endpoints}, by_alias=True, by_name=False
        )
    except ValidationError as error:
        problems += _problems(error, document.lines, ("pools", 0))
    if problems:
        raise ConfigError(source, sorted(problems, key=lambda problem: problem.line or 0))
    return pool.model_copy(update={fields[key]: getattr(checked, fields[key]) for key in known})


def made(fields: Mapping[str, object], source: str) -> Config:
    """A configuration that is not read from a file: fields of `Config` by their Python names, checked as
    those of a file are; `source` names it in errors.

    Raises ConfigError, with every problem in it.
    """
    try:
        return Config.model_validate(dict(fields))
    except ValidationError as error:
        raise ConfigError(source, _problems(error, {})) from None


def _read(text: str, source: str) -> strict_yaml.Document:
    try:
        return strict_yaml.read(text)
    except strict_yaml.YamlError as error:
        raise ConfigError(source, [Problem("", error.line, error.column, error.problem)]) from None


def _problems(error: ValidationError, lines: dict[KeyPath, int], within: KeyPath = ()) -> list[Problem]:
    """`within` is the place in a whole file of what was checked."""
    problems = [
        Problem(_written(path), _line_of(path, lines), None, message)
        for detail in error.errors(include_url=False)
        for path, message in _explained(detail, within)
    ]
    return sorted(problems, key=lambda problem: problem.line or 0)


def needing_restart(running: Config, wanted: Config) -> list[str]:
    """The keys, as written in a file, that differ and cannot change while running."""
    return [key.path for key in _restart_keys() if getattr(running, key.field) != getattr(wanted, key.field)]


def until_restart(running: Config, wanted: Config) -> Config:
    """`wanted`, with the keys that cannot change while running as they are in `running`."""
    return wanted.model_copy(update={key.field: getattr(running, key.field) for key in _restart_keys()})


# --- Describing ---


class Key(NamedTuple):
    """One key of the file. `path` as in `pools[].name`; `default` is None where the key is required.
    `setting`: it may stand in `settingsFrom`."""

    path: str
    field: str
    allowed: str
    default: str | None
    restart: bool
    setting: bool
    description: str


def keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[Key]:
    """Every key of the file, each mapping before the keys in it."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias}"
        extra = field.json_schema_extra
        yield Key(
            path,
            name,
            _allowed(field),
            None if field.is_required() else _default(field),
            isinstance(extra, dict) and bool(extra.get("restart")),
            isinstance(extra, dict) and bool(extra.get("setting")),
            field.description or "",
        )
        if inner := _section_in(field.annotation):
            yield from keys(inner, f"{path}[]." if get_origin(field.annotation) is tuple else f"{path}.")


def _restart_keys() -> list[Key]:
    return [key for key in keys() if key.restart]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    match value:
        case Balance() | EngineMetricsConfig() | SlowStartConfig():
            return "true"
        case BaseModel():
            return "{}"
        case None:
            return "none"
        case ():
            return "[]"
        case float() if _allowed(field).startswith("a duration"):
            return f"{value:g}s"
        case _:
            return str(value)


def _allowed(field: FieldInfo) -> str:
    """What a key may hold, in words."""
    for part in field.metadata:
        if isinstance(part, Allowed):
            return str(part)
    if words := _choices(field.annotation):
        return f"one of {', '.join(words)}"
    if inner := _section_in(field.annotation):
        return f"a mapping with {', '.join(_aliases(inner))}"
    low, above, high = (_bound(field, kind) for kind in (Ge, Gt, Le))
    if low is not None:
        return f"a whole number from {low} to {high}"
    return "text" if above is None else f"a number above {above}, at most {high}"


def _bound(field: FieldInfo, kind: type[Ge | Gt | Le]) -> object:
    return next(
        (getattr(part, kind.__name__.lower()) for part in field.metadata if isinstance(part, kind)), None
    )


def _aliases(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _choices(annotation: Any) -> list[str]:
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return [member.value for member in annotation]
    return [str(word) for word in get_args(annotation)] if get_origin(annotation) is Literal else []


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section that an annotation holds, directly, optionally or in a tuple."""
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def _field_at(path: KeyPath) -> tuple[type[BaseModel], FieldInfo | None]:
    """The section that a path ends in, and the field it names there; None: no such key."""
    section: type[BaseModel] = Config
    field: FieldInfo | None = None
    for at, part in enumerate(path):
        if isinstance(part, int):
            continue
        field = next((known for known in section.model_fields.values() if known.alias == part), None)
        inner = _section_in(field.annotation) if field else None
        if inner and any(isinstance(later, str) for later in path[at + 1 :]):
            section = inner
    return section, field


# --- Explaining ---


def _explained(detail: ErrorDetails, within: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """One of pydantic's errors as paths and sentences that name the value, what is allowed and the remedy."""
    path, value, context = detail["loc"], detail["input"], detail.get("ctx", {})
    section, field = _field_at((*within, *path))
    match detail["type"]:
        case "pools" | "addresses" | "tls":
            yield from cast("list[tuple[KeyPath, str]]", context["problems"])
        case "extra_forbidden":
            yield path, _unknown_key(str(path[-1]), section)
        case "too_short" if value:  # counted without the items that have errors of their own
            return
        case "model_type" | "model_attributes_type":
            item = _section_in(field.annotation) if field else section
            yield path, f"is {_shown(value)}; must be a mapping with {', '.join(_aliases(item or section))}"
        case "missing":
            yield path, f"is required: {field.description if field else ''}"
        case "value_error":
            reason = str(context["error"])
            yield path, reason if isinstance(value, dict | BaseModel) else f"is {_shown(value)}; {reason}"
        case _:
            allowed = _allowed(field) if field else detail["msg"]
            near = _nearest(value, _choices(field.annotation)) if field and isinstance(value, str) else None
            yield path, f"is {_shown(value)}; must be {allowed}" + (f"; did you mean {near}?" if near else "")


def _unknown_key(key: str, section: type[BaseModel]) -> str:
    siblings = _aliases(section)
    if near := _nearest(key, siblings):
        return f"unknown key; did you mean {near}?"
    elsewhere = [known.path for known in keys() if known.path.split(".")[-1] == key]
    if elsewhere:
        return f"unknown key here; did you mean {elsewhere[0]}?"
    return f"unknown key; the keys here are {', '.join(siblings)}"


def _no_setting(key: str, settings: Sequence[str]) -> str:
    if key in _aliases(PoolConfig):
        return f"stands in the router's own configuration alone; the keys here are {', '.join(settings)}"
    near = _nearest(key, settings)
    return (
        f"unknown key; did you mean {near}?"
        if near
        else f"unknown key; the keys here are {', '.join(settings)}"
    )


def _nearest(word: str, known: Sequence[str]) -> str | None:
    plain = {re.sub(r"[^a-z0-9]", "", one.lower()): one for one in known}
    found = difflib.get_close_matches(re.sub(r"[^a-z0-9]", "", word.lower()), plain, n=1)
    return plain[found[0]] if found else None


def _shown(value: object) -> str:
    """A value as its author would recognise it, short."""
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case str():
            return f"the text {value!r}" if len(value) <= 60 else f"the text {value[:57]!r}..."
        case _:
            return str(value)


def _written(path: KeyPath) -> str:
    """A path as people write it: pools[0].endpoints.static[1]."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _line_of(path: KeyPath, lines: dict[KeyPath, int]) -> int | None:
    """The line of a path, or of what should have held it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)

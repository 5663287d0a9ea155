"""Options in, a typed Envoy bootstrap out.

Read top down it follows a request: listener, filters, route, engines, and beside them the router's cluster.
What Envoy does with each setting was measured on Envoy 1.40; where a choice is not obvious a comment says
what happens without it.
"""

from __future__ import annotations

from datetime import timedelta
from ipaddress import ip_address

from betterproto2 import Message
from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.bootstrap.v3 import Admin, Bootstrap, BootstrapStaticResources
from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    Cluster,
    ClusterCommonLbConfig,
    ClusterCustomClusterType,
    ClusterDiscoveryType,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
    OutlierDetection,
    UpstreamConnectionOptions,
)
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation, HeaderMutationRemoveOnMatch
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    BackoffStrategy,
    DataSource,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    HeaderValue,
    HealthCheck,
    HealthCheckGrpcHealthCheck,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    Pipe,
    SocketAddress,
    SubstitutionFormatString,
    TcpKeepalive,
    TransportSocket,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.core.v3 import RetryPolicy as GrpcRetryPolicy
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    RetryPolicy,
    RetryPolicyRetryBackOff,
    RetryPolicyRetryHostPredicate,
    Route,
    RouteAction,
    RouteActionUpgradeConfig,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.access_loggers.file.v3 import FileAccessLog
from envoy_data_plane.envoy.extensions.clusters.common.dns.v3 import DnsLookupFamily
from envoy_data_plane.envoy.extensions.clusters.dns.v3 import DnsCluster
from envoy_data_plane.envoy.extensions.filters.http.buffer.v3 import Buffer, BufferPerRoute
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    ExtProcOverrides,
    ExtProcPerRoute,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
    ProcessingMode,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ProcessingModeBodySendMode as BodyMode,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ProcessingModeHeaderSendMode as HeaderMode,
)
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerCodecType,
    HttpConnectionManagerUpgradeConfig,
    HttpFilter,
)
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import (
    HeaderMutation as EarlyHeaderMutation,
)
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request.v3 import LeastRequest
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host.v3 import (
    OverrideHost,
    OverrideHostOverrideHostSource,
)
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    SubjectAltNameMatcher,
    SubjectAltNameMatcherSanType,
    TlsCertificate,
    UpstreamTlsContext,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions,
    HttpProtocolOptionsExplicitHttpConfig,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import Int64Range, Percent
from envoy_data_plane.google.protobuf import Any, Struct, Value

from extproc.address import Address as Parsed
from extproc.address import parse_address
from extproc.envoy_config.options import Options, RouterTls, is_ip

# Endpoint Picker Protocol of the Gateway API Inference Extension v1.0.0.
NAMESPACE = "envoy.lb"
PIN = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"

ENGINES = "engines"
ROUTER = "extproc"
EXT_PROC = "envoy.filters.http.ext_proc"
BUFFER = "envoy.filters.http.buffer"

# The router names one choice and up to four to fall back on.
RETRIES = 4
# Each request holds a stream to the router until its reply ends; Envoy's default of 1024 requests and 3
# retries would turn a busy minute, or one dead engine, into 503s.
MANY = 100_000
# A queued request of a long prompt may be silent for many minutes: the engine decides, not the gateway.
IDLE = timedelta(hours=1)
# A pin to an endpoint that Envoy has not looked up yet falls back: so it looks often.
DNS_REFRESH = timedelta(seconds=1)


def bootstrap(options: Options) -> Bootstrap:
    """Build the whole configuration.

    :return: the typed message; `render` prints it.
    """
    listeners = [_listener("clients", options.listen, _with_router(options), options)]
    if options.plain_listen is not None:
        listeners.append(_listener("plain", options.plain_listen, _without_router(options), options))
    return Bootstrap(
        static_resources=BootstrapStaticResources(
            listeners=listeners, clusters=[_engines(options), _router(options)]
        ),
        admin=_admin(options),
    )


def _admin(options: Options) -> Admin | None:
    if options.admin is None:
        return None
    address = parse_address(options.admin)
    # The admin page can stop Envoy and dump its configuration.
    private = address.is_unix or ip_address(address.host).is_loopback
    paths = [] if private else [StringMatcher(prefix=path) for path in ("/ready", "/stats")]
    return Admin(address=_address(address), allow_paths=paths)


# Listener


def _listener(name: str, address: str, http: HttpConnectionManager, options: Options) -> Listener:
    return Listener(
        name=name,
        address=_address(parse_address(address)),
        per_connection_buffer_limit_bytes=options.read_ahead,
        filter_chains=[
            FilterChain(
                filters=[
                    Filter(
                        name="envoy.filters.network.http_connection_manager",
                        typed_config=Any.pack(http),
                    )
                ]
            )
        ],
    )


def _with_router(options: Options) -> HttpConnectionManager:
    filters = [HttpFilter(name=EXT_PROC, typed_config=Any.pack(_ext_proc(options)))]
    if options.exchange == "one-message":
        # Off except on the route that turns it on.
        filters.append(
            HttpFilter(
                name=BUFFER,
                disabled=True,
                typed_config=Any.pack(Buffer(max_request_bytes=options.whole_limit)),
            )
        )
    return _connection_manager("clients", filters, _routes(options), options)


def _without_router(options: Options) -> HttpConnectionManager:
    route = Route(
        name=options.route_name,
        match=RouteMatch(prefix="/"),
        route=_action(),
        request_body_buffer_limit=options.body_limit,
    )
    return _connection_manager("plain", [], [route], options)


def _connection_manager(
    name: str, filters: list[HttpFilter], routes: list[Route], options: Options
) -> HttpConnectionManager:
    return HttpConnectionManager(
        stat_prefix=name,
        codec_type=HttpConnectionManagerCodecType.AUTO,
        http2_protocol_options=Http2ProtocolOptions(initial_stream_window_size=options.read_ahead),
        stream_idle_timeout=IDLE,
        request_headers_timeout=timedelta(seconds=10),
        use_remote_address=True,
        normalize_path=True,
        upgrade_configs=[HttpConnectionManagerUpgradeConfig(upgrade_type="websocket")],
        early_header_mutation_extensions=[
            TypedExtensionConfig(
                name="strip",
                typed_config=Any.pack(
                    EarlyHeaderMutation(
                        mutations=[_remove("x-gateway-destination-endpoint"), _remove("x-envoy-")]
                    )
                ),
            )
        ],
        http_filters=[
            *filters,
            HttpFilter(name="envoy.filters.http.router", typed_config=Any.pack(Router())),
        ],
        route_config=RouteConfiguration(
            name=name, virtual_hosts=[VirtualHost(name="all", domains=["*"], routes=routes)]
        ),
        access_log=_access_log(options),
    )


def _remove(prefix: str) -> HeaderMutation:
    """Remove what the client sent under these names, before anything reads it.

    The pin must be the router's alone, and Envoy takes orders on retries and time-outs from x-envoy- headers.
    """
    return HeaderMutation(
        remove_on_match=HeaderMutationRemoveOnMatch(
            key_matcher=StringMatcher(prefix=prefix, ignore_case=True)
        )
    )


def _access_log(options: Options) -> list[AccessLog]:
    if options.access_log is None:
        return []
    fields = {
        "time": "%START_TIME%",
        "method": "%REQ(:METHOD)%",
        "path": "%REQ(:PATH)%",
        "protocol": "%PROTOCOL%",
        "status": "%RESPONSE_CODE%",
        "flags": "%RESPONSE_FLAGS%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        "pinned": f"%DYNAMIC_METADATA({NAMESPACE}:{PIN})%",
        "endpoint": "%UPSTREAM_HOST%",
        "bytes_in": "%BYTES_RECEIVED%",
        "bytes_out": "%BYTES_SENT%",
        "first_byte_ms": "%RESPONSE_DURATION%",
        "total_ms": "%DURATION%",
    }
    return [
        AccessLog(
            name="envoy.access_loggers.file",
            typed_config=Any.pack(
                FileAccessLog(
                    path=options.access_log,
                    log_format=SubstitutionFormatString(
                        json_format=Struct(
                            fields={key: Value(string_value=text) for key, text in fields.items()}
                        )
                    ),
                )
            ),
        )
    ]


# The filter that asks the router


def _ext_proc(options: Options) -> ExternalProcessor:
    namespaces = MetadataOptionsMetadataNamespaces(untyped=[NAMESPACE])
    return ExternalProcessor(
        stat_prefix=ROUTER,
        grpc_service=GrpcService(
            envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=ROUTER),
            initial_metadata=[]
            if options.pool is None
            else [HeaderValue(key="x-warmroute-pool", value=options.pool)],
            # A router that stops between two requests is not the client's trouble while another one runs.
            retry_policy=GrpcRetryPolicy(
                retry_on="connect-failure,refused-stream,reset-before-request,unavailable",
                num_retries=2,
                retry_back_off=BackoffStrategy(
                    base_interval=timedelta(milliseconds=5), max_interval=timedelta(milliseconds=50)
                ),
            ),
        ),
        failure_mode_allow=not options.fail_closed,
        message_timeout=timedelta(seconds=options.message_timeout),
        allow_mode_override=True,
        # Envoy takes content-length from a body that a processor may have changed; the router never does.
        allow_content_length_header=True,
        request_attributes=["request.path", "xds.route_name"],
        response_attributes=["upstream.address", "upstream.request_attempt_count"],
        metadata_options=MetadataOptions(receiving_namespaces=namespaces, forwarding_namespaces=namespaces),
        processing_mode=_mode(),
    )


def _mode(*, headers: bool = True, body: BodyMode = BodyMode.BUFFERED_PARTIAL) -> ProcessingMode:
    return ProcessingMode(
        request_header_mode=HeaderMode.SEND if headers else HeaderMode.SKIP,
        request_body_mode=body,
        request_trailer_mode=HeaderMode.SKIP,
        response_header_mode=HeaderMode.SEND,
        response_body_mode=BodyMode.NONE,
        # Keeps the stream open to the last byte of the reply: so the router knows when the request ends.
        response_trailer_mode=HeaderMode.SEND,
    )


# Routes


def _routes(options: Options) -> list[Route]:
    """One route for each way a body can come; the first that matches is taken.

    A body of BUFFERED_PARTIAL must not end in the very read that passes the limit: Envoy 1.40 then loses its
    end, an empty last piece that is queued while the router answers and dropped with the queue. With chunked
    encoding the engine waits for ever. So that mode is left to bodies known to fit, or to be longer by more
    than Envoy reads at once.
    """
    return [_upgrade_route(options), _fitting_route(options), _long_route(options), _unsized_route(options)]


def _route(options: Options, match: list[HeaderMatcher], limit: int, mode: ProcessingMode) -> Route:
    return Route(
        name=options.route_name,
        match=RouteMatch(prefix="/", headers=match),
        route=_action(),
        # What ext_proc holds for the router and the router filter for a retry.
        request_body_buffer_limit=limit,
        typed_per_filter_config={EXT_PROC: _override(mode)},
    )


def _fitting_route(options: Options) -> Route:
    """A body known to be within the limit: whole to the router, in the exchange that was asked for.

    With the headers not sent, only the buffer filter holds the request until the router has answered: without
    it Envoy picks an engine first. That filter refuses with 413 what does not fit; here all fits.
    """
    limit = options.whole_limit
    one = options.exchange == "one-message"
    route = _route(options, [_length(1, limit + 1)], limit, _mode(headers=not one))
    if one:
        route.typed_per_filter_config[BUFFER] = Any.pack(
            BufferPerRoute(buffer=Buffer(max_request_bytes=limit))
        )
    return route


def _long_route(options: Options) -> Route:
    """A body known to be longer: its first part to the router, the rest streams past."""
    beyond = _length(options.whole_limit + 1, 2**62)
    return _route(options, [beyond], options.body_limit, _mode())


def _unsized_route(options: Options) -> Route:
    """No body, or one of unknown length: whole to the router, and 413 beyond what the router takes."""
    return _route(options, [], options.unsized_limit, _mode(body=BodyMode.BUFFERED))


def _length(start: int, end: int) -> HeaderMatcher:
    """Match a content-length of at least `start` and less than `end` bytes."""
    return HeaderMatcher(name="content-length", range_match=Int64Range(start=start, end=end))


def _upgrade_route(options: Options) -> Route:
    """A websocket has no body to wait for; waiting for one would hang it."""
    action = _action()
    action.upgrade_configs = [RouteActionUpgradeConfig(upgrade_type="websocket")]
    return Route(
        name=options.route_name,
        match=RouteMatch(
            prefix="/",
            headers=[
                HeaderMatcher(name="upgrade", string_match=StringMatcher(exact="websocket", ignore_case=True))
            ],
        ),
        route=action,
        typed_per_filter_config={EXT_PROC: _override(_mode(body=BodyMode.NONE))},
    )


def _override(mode: ProcessingMode) -> Any:
    return Any.pack(ExtProcPerRoute(overrides=ExtProcOverrides(processing_mode=mode)))


def _action() -> RouteAction:
    return RouteAction(
        cluster=ENGINES,
        timeout=timedelta(0),
        retry_policy=RetryPolicy(
            # `reset` covers an engine that dies after it has read the request and before it has answered.
            retry_on="connect-failure,refused-stream,reset,reset-before-request,retriable-status-codes",
            retriable_status_codes=[503],
            num_retries=RETRIES,
            retry_host_predicate=[
                RetryPolicyRetryHostPredicate(
                    name="envoy.retry_host_predicates.previous_hosts",
                    typed_config=Any.pack(PreviousHostsPredicate()),
                )
            ],
            host_selection_retry_max_attempts=RETRIES + 1,
            # The next try goes to another engine: no reason to wait long.
            retry_back_off=RetryPolicyRetryBackOff(
                base_interval=timedelta(milliseconds=5), max_interval=timedelta(milliseconds=100)
            ),
        ),
    )


# Clusters


def _engines(options: Options) -> Cluster:
    addresses = options.endpoints if options.endpoints_dns is None else (options.endpoints_dns,)
    cluster = Cluster(
        name=ENGINES,
        connect_timeout=timedelta(milliseconds=500),
        circuit_breakers=_breakers(),
        # The router's pin overrules an ejection, so this guards the requests that are not pinned. Replies of
        # the engine do not count: a client could have an engine ejected by provoking 5xx.
        outlier_detection=OutlierDetection(
            split_external_local_origin_errors=True,
            consecutive_local_origin_failure=3,
            enforcing_consecutive_5xx=0,
            enforcing_success_rate=0,
            enforcing_local_origin_success_rate=0,
            interval=timedelta(milliseconds=500),
            base_ejection_time=timedelta(seconds=2),
            max_ejection_percent=50,
        ),
        upstream_connection_options=_keepalive(),
        typed_extension_protocol_options=_protocol(
            HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=Http1ProtocolOptions())
        ),
        load_balancing_policy=LoadBalancingPolicy(
            policies=[
                _policy(
                    "override_host",
                    OverrideHost(
                        # Not from the header of the same name, though the protocol sets both: metadata is the
                        # one place a client cannot write to.
                        override_host_sources=[OverrideHostOverrideHostSource(metadata=_key(PIN))],
                        selected_host_key=_key(SERVED),
                        fallback_policy=LoadBalancingPolicy(
                            policies=[_policy("least_request", LeastRequest())]
                        ),
                    ),
                )
            ]
        ),
    )
    return _located(cluster, [parse_address(text) for text in addresses])


def _router(options: Options) -> Cluster:
    addresses = [_reachable(parse_address(text)) for text in options.routers]
    cluster = Cluster(
        name=ROUTER,
        connect_timeout=timedelta(milliseconds=250),
        circuit_breakers=_breakers(),
        # A router that drains says so here before it stops to answer. With all unhealthy any is asked.
        health_checks=[
            HealthCheck(
                grpc_health_check=HealthCheckGrpcHealthCheck(
                    service_name="envoy.service.ext_proc.v3.ExternalProcessor"
                ),
                interval=timedelta(milliseconds=500),
                no_traffic_interval=timedelta(milliseconds=500),
                timeout=timedelta(seconds=1),
                unhealthy_threshold=1,
                healthy_threshold=1,
            )
        ],
        common_lb_config=ClusterCommonLbConfig(
            healthy_panic_threshold=Percent(value=1),
            # By default the workers learn a second late what the health check found.
            update_merge_window=timedelta(0),
        ),
        # One refused connection is enough: the others can answer, and without any the requests fall back.
        outlier_detection=OutlierDetection(
            split_external_local_origin_errors=True,
            consecutive_local_origin_failure=1,
            enforcing_success_rate=0,
            enforcing_local_origin_success_rate=0,
            interval=timedelta(milliseconds=500),
            base_ejection_time=timedelta(seconds=1),
            max_ejection_time=timedelta(seconds=5),
            max_ejection_percent=50,
        ),
        upstream_connection_options=_keepalive(),
        transport_socket=None if options.tls is None else _transport(options.tls),
        typed_extension_protocol_options=_protocol(
            HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=Http2ProtocolOptions())
        ),
    )
    return _located(cluster, addresses)


def _located(cluster: Cluster, addresses: list[Parsed]) -> Cluster:
    """The cluster with its hosts: as they are written, or looked up where one is a name."""
    cluster.load_assignment = _assignment(cluster.name, addresses)
    if all(address.is_unix or is_ip(address.host) for address in addresses):
        cluster.type = ClusterDiscoveryType.STATIC
        return cluster
    cluster.cluster_type = ClusterCustomClusterType(
        name="envoy.cluster.dns",
        typed_config=Any.pack(
            DnsCluster(
                dns_refresh_rate=DNS_REFRESH,
                # Pods of two address families are endpoints of both; by default Envoy would know one of them.
                dns_lookup_family=DnsLookupFamily.ALL,
            )
        ),
    )
    return cluster


def _transport(tls: RouterTls) -> TransportSocket:
    """TLS with the router, for streams and health checks. gRPC refuses a client that does not offer h2."""
    certificates = []
    if tls.cert is not None and tls.key is not None:
        certificates.append(
            TlsCertificate(
                certificate_chain=DataSource(filename=tls.cert), private_key=DataSource(filename=tls.key)
            )
        )
    trust = None
    if tls.trusted_ca is not None:
        trust = CertificateValidationContext(
            trusted_ca=DataSource(filename=tls.trusted_ca),
            match_typed_subject_alt_names=[
                SubjectAltNameMatcher(
                    san_type=SubjectAltNameMatcherSanType.IP_ADDRESS
                    if is_ip(name)
                    else SubjectAltNameMatcherSanType.DNS,
                    matcher=StringMatcher(exact=name),
                )
                for name in tls.names
            ],
        )
    context = CommonTlsContext(tls_certificates=certificates, validation_context=trust, alpn_protocols=["h2"])
    return TransportSocket(
        name="envoy.transport_sockets.tls",
        typed_config=Any.pack(UpstreamTlsContext(common_tls_context=context)),
    )


def _breakers() -> CircuitBreakers:
    return CircuitBreakers(
        thresholds=[
            CircuitBreakersThresholds(
                max_connections=MANY, max_pending_requests=MANY, max_requests=MANY, max_retries=MANY
            )
        ]
    )


def _keepalive() -> UpstreamConnectionOptions:
    """Find a peer that vanished without a word in half a minute, even while a request waits silently."""
    return UpstreamConnectionOptions(
        tcp_keepalive=TcpKeepalive(keepalive_time=15, keepalive_interval=5, keepalive_probes=3)
    )


def _protocol(explicit: HttpProtocolOptionsExplicitHttpConfig) -> dict[str, Any]:
    return {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": Any.pack(
            HttpProtocolOptions(explicit_http_config=explicit)
        )
    }


def _policy(name: str, message: Message) -> LoadBalancingPolicyPolicy:
    return LoadBalancingPolicyPolicy(
        typed_extension_config=TypedExtensionConfig(
            name=f"envoy.load_balancing_policies.{name}", typed_config=Any.pack(message)
        )
    )


def _key(name: str) -> MetadataKey:
    return MetadataKey(key=NAMESPACE, path=[MetadataKeyPathSegment(key=name)])


def _assignment(cluster: str, addresses: list[Parsed]) -> ClusterLoadAssignment:
    return ClusterLoadAssignment(
        cluster_name=cluster,
        endpoints=[
            LocalityLbEndpoints(
                lb_endpoints=[
                    LbEndpoint(endpoint=Endpoint(address=_address(address))) for address in addresses
                ]
            )
        ],
    )


def _reachable(listening: Parsed) -> Parsed:
    """Where to connect for a router that listens on every address: this machine."""
    return listening._replace(host={"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listening.host, listening.host))


def _address(address: Parsed) -> Address:
    if address.is_unix:
        return Address(pipe=Pipe(path=address.path))
    return Address(socket_address=SocketAddress(address=address.host, port_value=address.port))

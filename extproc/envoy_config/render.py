"""The typed message as YAML or JSON, checked on the way against descriptors of other make.

The message is built and printed with envoy-data-plane and then parsed with the upb descriptors of xds-protos:
a fault of one library does not reach Envoy.
"""

from __future__ import annotations

import json
from typing import Any, Literal, cast

import yaml
from betterproto2 import Casing
from envoy.config.bootstrap.v3.bootstrap_pb2 import Bootstrap as Descriptor
from envoy.extensions.access_loggers.file.v3 import file_pb2 as _file
from envoy.extensions.clusters.dns.v3 import dns_cluster_pb2 as _dns_cluster
from envoy.extensions.filters.http.buffer.v3 import buffer_pb2 as _buffer
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2 as _ext_proc
from envoy.extensions.filters.http.router.v3 import router_pb2 as _router
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as _hcm
from envoy.extensions.http.early_header_mutation.header_mutation.v3 import header_mutation_pb2 as _strip
from envoy.extensions.load_balancing_policies.least_request.v3 import least_request_pb2 as _least_request
from envoy.extensions.load_balancing_policies.override_host.v3 import override_host_pb2 as _override_host
from envoy.extensions.retry.host.previous_hosts.v3 import previous_hosts_pb2 as _previous_hosts
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2 as _tls
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2 as _protocol_options
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap
from google.protobuf import json_format

# Importing them is what makes their types known to the pool in which an Any is looked up.
_REGISTERED = (
    _file,
    _dns_cluster,
    _buffer,
    _ext_proc,
    _router,
    _hcm,
    _strip,
    _least_request,
    _override_host,
    _previous_hosts,
    _tls,
    _protocol_options,
)

Format = Literal["yaml", "json"]

# Fields of Envoy 1.36 and later which the descriptors of xds-protos 1.85 do not have yet.
_NEWER = {
    "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor": {
        "allow_content_length_header"
    },
    "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost": {
        "selected_host_key"
    },
}


class RenderError(ValueError):
    """The message does not agree with Envoy's descriptors."""


def render(message: Bootstrap, form: Format = "yaml") -> str:
    """Print the configuration as Envoy reads it.

    :return: text that ends with a line break.
    :raises RenderError: a field or value that Envoy's descriptors do not have.
    """
    # Names as they stand in the .proto files: the library's own snake case makes 5xx 5_xx.
    tree = message.to_dict(casing=cast("Casing", str))
    try:
        json_format.ParseDict(_known(tree), Descriptor(), ignore_unknown_fields=False)
    except json_format.Error as error:
        # Each level of nesting repeats the whole message; the innermost names field and place.
        innermost = str(error).rpartition(" field: ")[2].rstrip(".")
        raise RenderError(f"not a configuration of Envoy: {innermost}") from error
    if form == "json":
        return json.dumps(tree, indent=2) + "\n"
    return yaml.safe_dump(tree, sort_keys=False, width=110)


def _known(node: Any) -> Any:
    if isinstance(node, dict):
        newer = _NEWER.get(node.get("@type", ""), set())
        return {key: _known(value) for key, value in node.items() if key not in newer}
    if isinstance(node, list):
        return [_known(value) for value in node]
    return node

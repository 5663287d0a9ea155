"""A listing in ConfigMaps: written by who resolved it, read by every node.

It is compressed and cut: an object of Kubernetes has at most 1.5 MiB in etcd, a ConfigMap 1 MiB of data
(k8s.io/api/core/v1, MaxSecretSize). `cacheprep fetch --listing DIRECTORY` puts the parts together again.
"""

from __future__ import annotations

import base64
import gzip

from cacheprep.api import Endpoint, ModelDataCacheConfig
from cacheprep.api.model import JsonObject, moment
from cacheprep.api.names import CACHE, COMPONENT, ENDPOINT, ENDPOINT_KIND
from cacheprep.listing import Listing
from cacheprep.plan.jobs import listing_name, owned_by
from cacheprep.plan.observed import Component
from cacheprep.store.layout import key_of

PART_BYTES = 700 * 1024
"""In base64 a third more, which is below 1 MiB."""


def config_maps(endpoint: Endpoint, cache: ModelDataCacheConfig, listing: Listing) -> list[JsonObject]:
    """The ConfigMaps that hold the listing of a cache."""
    packed = gzip.compress(listing.to_json(), mtime=0)
    parts = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": listing_name(cache.name, number),
                "namespace": cache.namespace,
                "labels": {
                    ENDPOINT: endpoint.name,
                    ENDPOINT_KIND: endpoint.KIND,
                    CACHE: cache.name,
                    COMPONENT: Component.LISTING.value,
                },
                "ownerReferences": [owned_by(cache)],
            },
            "binaryData": {f"part-{number:04}.gz": base64.b64encode(part).decode()},
        }
        for number, part in enumerate(parts)
    ]


def fits(cache: ModelDataCacheConfig, listing: Listing) -> bool:
    """Whether the cache is of this listing, or of none yet. What differs is drift: the cache stays as it is,
    and `looked` notes it."""
    return cache.status.key in (None, key_of(listing.digest()))


def resolved(cache: ModelDataCacheConfig, listing: Listing, parts: int, now: float) -> JsonObject:
    """The cache's status once its ConfigMaps are written."""
    known = {
        "key": key_of(listing.digest()),
        "revision": listing.revision or None,
        "verification": listing.verification,
        "total_bytes": listing.total,
        "files": len(listing.files),
        "listing_parts": parts,
        "resolved_at": cache.status.resolved_at or moment(now),
    }
    return cache.status.model_copy(update=known).write()


def looked(cache: ModelDataCacheConfig, listing: Listing, now: float) -> JsonObject:
    """The cache's status once its source was listed again."""
    key = key_of(listing.digest())
    found = {
        "drift_checked_at": moment(now),
        "drifted_key": key if key != cache.status.key else None,
    }
    return cache.status.model_copy(update=found).write()

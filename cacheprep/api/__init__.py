"""The kinds of `warmroute.dev/v1alpha1`, as typed models; the CRDs are made from them (`make crds`). Pure."""

from __future__ import annotations

from cacheprep.api.caches import ModelDataCacheConfig, ModelImageCache, NodeModelCache
from cacheprep.api.endpoints import Endpoint, InferenceEndpointConfig, JumpStartModel

__all__ = [
    "Endpoint",
    "InferenceEndpointConfig",
    "JumpStartModel",
    "ModelDataCacheConfig",
    "ModelImageCache",
    "NodeModelCache",
]

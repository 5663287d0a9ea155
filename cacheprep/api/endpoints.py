"""InferenceEndpointConfig and JumpStartModel: the two kinds that people write."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from cacheprep.api.model import Resource
from cacheprep.api.serving import ServingSpec, ServingStatus
from cacheprep.api.sources import CacheSource, JumpStartSource, ModelSource


class InferenceEndpointSpec(ServingSpec):
    """A model, the engine that serves it, and what is kept on nodes for it."""

    model_source: ModelSource


class InferenceEndpointConfig(Resource):
    """A model service: pods of an engine that load a model, on nodes that have it before."""

    KIND: ClassVar[str] = "InferenceEndpointConfig"
    PLURAL: ClassVar[str] = "inferenceendpointconfigs"

    kind: Literal["InferenceEndpointConfig"] = "InferenceEndpointConfig"
    spec: InferenceEndpointSpec
    status: ServingStatus = Field(default_factory=ServingStatus)

    @property
    def source(self) -> CacheSource:
        """Where the weights come from."""
        named = self.spec.model_source
        return CacheSource(**{name: getattr(named, name) for name in type(named).model_fields})


class JumpStartSpec(ServingSpec):
    """A model of SageMaker JumpStart, the engine that serves it, and what is kept on nodes for it."""

    model: JumpStartSource


class JumpStartModel(Resource):
    """A model service whose model comes from SageMaker JumpStart."""

    KIND: ClassVar[str] = "JumpStartModel"
    PLURAL: ClassVar[str] = "jumpstartmodels"

    kind: Literal["JumpStartModel"] = "JumpStartModel"
    spec: JumpStartSpec
    status: ServingStatus = Field(default_factory=ServingStatus)

    @property
    def source(self) -> CacheSource:
        """Where the weights come from."""
        return CacheSource(jump_start=self.spec.model)


Endpoint = InferenceEndpointConfig | JumpStartModel

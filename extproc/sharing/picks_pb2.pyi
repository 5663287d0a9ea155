from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Batch(_message.Message):
    __slots__ = ("instance", "sequence", "scheme", "waited_ms", "pools")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    instance: int
    sequence: int
    scheme: int
    waited_ms: int
    pools: _containers.RepeatedCompositeFieldContainer[PoolPicks]
    def __init__(self, instance: _Optional[int] = ..., sequence: _Optional[int] = ..., scheme: _Optional[int] = ..., waited_ms: _Optional[int] = ..., pools: _Optional[_Iterable[_Union[PoolPicks, _Mapping]]] = ...) -> None: ...

class PoolPicks(_message.Message):
    __slots__ = ("pool", "endpoints", "picks")
    POOL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    PICKS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    picks: _containers.RepeatedCompositeFieldContainer[Pick]
    def __init__(self, pool: _Optional[str] = ..., endpoints: _Optional[_Iterable[str]] = ..., picks: _Optional[_Iterable[_Union[Pick, _Mapping]]] = ...) -> None: ...

class Pick(_message.Message):
    __slots__ = ("endpoint", "age_ms", "like", "shared", "keys", "ends")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    LIKE_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    endpoint: int
    age_ms: int
    like: int
    shared: int
    keys: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, endpoint: _Optional[int] = ..., age_ms: _Optional[int] = ..., like: _Optional[int] = ..., shared: _Optional[int] = ..., keys: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("instance", "running_ms")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_MS_FIELD_NUMBER: _ClassVar[int]
    instance: int
    running_ms: int
    def __init__(self, instance: _Optional[int] = ..., running_ms: _Optional[int] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

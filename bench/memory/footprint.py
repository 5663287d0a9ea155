"""Bytes that objects take, with all that hangs on them."""

from __future__ import annotations

import gc
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import NamedTuple

_NOT_STATE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


class Footprint(NamedTuple):
    """Size of an object graph."""

    bytes: int
    keys: int
    """Entries of dicts whose keys are whole numbers: block keys."""


def footprint(*roots: object) -> Footprint:
    """What the objects take, each counted once; classes, modules and functions are not counted."""
    seen: set[int] = set()
    waiting = list(roots)
    size = keys = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _NOT_STATE):
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        if isinstance(one, dict) and one and type(next(iter(one))) is int:
            keys += len(one)
        waiting.extend(gc.get_referents(one))
    return Footprint(size, keys)

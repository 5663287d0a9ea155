"""What the API server holds of the kinds that an attachment is made of, as plain JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Json = Mapping[str, Any]


class Reference(NamedTuple):
    """An object by its name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Pods(NamedTuple):
    """Which pods."""

    namespace: str
    selector: str
    """As in `labelSelector`."""


@dataclass(frozen=True)
class Inventory:
    """Objects by kind. A kind that is not installed has none."""

    objects: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    pods: Mapping[Pods, Sequence[Json]] = field(default_factory=dict)
    """Those that were asked for."""

    def of(self, kind: str) -> Sequence[Json]:
        """Every object of a kind that was read."""
        return self.objects.get(kind, ())

    def get(self, kind: str, reference: Reference) -> Json | None:
        """One object; None if there is none."""
        return next((one for one in self.of(kind) if reference_of(one) == reference), None)

    def slices(self, service: Reference) -> list[Json]:
        """The EndpointSlices of a Service."""
        return [
            one
            for one in self.of("EndpointSlice")
            if reference_of(one).namespace == service.namespace
            and at(one, "metadata", "labels", "kubernetes.io/service-name") == service.name
        ]


def reference_of(item: Json) -> Reference:
    """The name of an object."""
    metadata = item["metadata"]
    return Reference(metadata.get("namespace") or "", metadata["name"])


def titled(item: Json) -> str:
    """An object as findings name it: `Gateway llm/llm`."""
    return f"{item['kind']} {reference_of(item)}"


def at(value: Any, *path: str) -> Any:
    """What lies at this path of nested mappings; None where one of them, or the value, is missing."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def entries(value: Any, *path: str) -> list[Any]:
    """The list at this path; empty where there is none."""
    found = at(value, *path)
    return list(found) if isinstance(found, Sequence) and not isinstance(found, str) else []


_QUANTITY = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>[KMGTPE]i|[kKMGTPE])?")
_POWERS = "kMGTPE"


def quantity(value: Any) -> int | None:
    """Bytes of a Kubernetes quantity: `8Mi`, `32768`, 32768. None if it is none."""
    form = _QUANTITY.fullmatch(str(value)) if value is not None else None
    if form is None:
        return None
    unit = form["unit"] or ""
    base = 1024 if unit.endswith("i") else 1000
    power = _POWERS.index("k" if unit[0] == "K" else unit[0]) + 1 if unit else 0
    return int(float(form["number"]) * base**power)


_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|h|m|s)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(value: Any) -> float | None:
    """Seconds of a duration of the Gateway API (GEP-2257): `1h30m`, `500ms`. None if it is none."""
    if not isinstance(value, str):
        return None
    parts = _DURATION_PART.findall(value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        return None
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)


def selects(selector: Any, labels: Mapping[str, str]) -> bool:
    """Whether a selector with `matchLabels` and `matchExpressions` takes these labels."""
    for key, value in (at(selector, "matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    return all(_holds(one, labels) for one in entries(selector, "matchExpressions"))


def _holds(expression: Json, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], entries(expression, "values")
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def merged(base: Any, over: Any) -> Any:
    """`over` on top of `base`, mapping by mapping, as a JSON merge patch (RFC 7396) does."""
    if not (isinstance(base, Mapping) and isinstance(over, Mapping)):
        return over
    return {**base, **{key: merged(base.get(key), value) for key, value in over.items()}}


def listed(words: Iterable[object]) -> str:
    """Words with commas."""
    return ", ".join(str(word) for word in words)

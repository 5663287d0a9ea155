"""A pydantic model's JSON schema in the form that CustomResourceDefinitions take. Pure.

Structural schemas (https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
#specifying-a-structural-schema) have no $ref and no null beside a type, and say everything where it stands.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_DROPPED = ("title", "$defs", "additionalProperties")


def schema_of(model: type[BaseModel]) -> Schema:
    """The structural schema of a model.

    Raises:
        ValueError: if a field's type has no structural form; the message names it.
    """
    whole = model.model_json_schema(by_alias=True, mode="validation")
    return _structural(whole, whole.get("$defs", {}), model.__name__)


def _structural(schema: Schema, definitions: Schema, where: str) -> Schema:
    schema = _merged(schema, definitions, where)
    made: Schema = {key: value for key, value in schema.items() if key not in _DROPPED}
    if made.get("default", ...) is None:
        del made["default"]
    if "description" in made:
        made["description"] = _one_line(made["description"])
    if "const" in made:
        made["enum"] = [made.pop("const")]
    if "properties" in made:
        made["properties"] = {
            name: _structural(field, definitions, f"{where}.{name}")
            for name, field in made["properties"].items()
        }
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        made["additionalProperties"] = _structural(values, definitions, f"{where}.*")
    if "items" in made:
        made["items"] = _structural(made["items"], definitions, f"{where}[]")
    if "type" not in made and "x-kubernetes-int-or-string" not in made:
        raise ValueError(f"{where}: has no type in a structural schema; give it one by WithJsonSchema")
    return dict(sorted(made.items()))


def _merged(schema: Schema, definitions: Schema, where: str) -> Schema:
    """A schema without $ref, and without the null that an optional field may be."""
    if "anyOf" in schema:
        others = [one for one in schema["anyOf"] if one.get("type") != "null"]
        if len(others) != 1:
            raise ValueError(f"{where}: is of several types; give it a schema by WithJsonSchema")
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return _merged({**others[0], **rest}, definitions, where)
    if "$ref" in schema:
        target = definitions[schema["$ref"].removeprefix("#/$defs/")]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _merged({**target, **rest}, definitions, where)
    return schema


def _one_line(text: str) -> str:
    return " ".join(text.split())

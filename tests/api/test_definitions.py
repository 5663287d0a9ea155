"""The CustomResourceDefinitions in manifests/ are those of the models, in the form that API servers take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from cacheprep.api.__main__ import main
from cacheprep.api.definitions import HEAD, KINDS, Kind, definition, files
from cacheprep.api.structural import schema_of

DIRECTORY = Path(__file__).parents[2] / "manifests" / "operator" / "crds"


def test_the_files_in_manifests_are_what_make_crds_writes_now() -> None:
    written = {path.name: path.read_text() for path in DIRECTORY.iterdir()}
    assert written == files(), "run `make crds`"


def test_writing_them_removes_those_of_kinds_that_are_no_more_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "old_kind.yaml").write_text(f"{HEAD}kind: Old\n")
    (tmp_path / "values.yaml").write_text("kind: Mine\n")
    main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*files(), "values.yaml"}


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from schemas(field, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from schemas(schema[key], f"{path}[]")


def all_schemas(kind: Kind) -> Iterator[tuple[str, dict[str, Any]]]:
    (version,) = definition(kind)["spec"]["versions"]
    return schemas(version["schema"]["openAPIV3Schema"], kind.model.KIND)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.model.KIND)
def test_no_part_of_a_schema_is_of_several_types_or_said_elsewhere(kind: Kind) -> None:
    for path, schema in all_schemas(kind):
        assert not {"$ref", "anyOf", "allOf", "oneOf", "$defs", "title"} & schema.keys(), path
        assert schema.get("default", ...) is not None, path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.model.KIND)
def test_every_text_list_and_map_has_a_bound_so_that_the_cost_of_rules_has(kind: Kind) -> None:
    for path, schema in all_schemas(kind):
        if path.removeprefix(kind.model.KIND) in ("", ".apiVersion", ".kind", ".metadata"):
            continue
        if schema.get("type") == "string" and "enum" not in schema and schema.get("format") != "date-time":
            assert "maxLength" in schema, path
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
        if isinstance(schema.get("additionalProperties"), dict):
            assert "maxProperties" in schema, path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.model.KIND)
def test_every_rule_says_what_to_do(kind: Kind) -> None:
    for path, schema in all_schemas(kind):
        for rule in schema.get("x-kubernetes-validations", []):
            assert len(rule["message"]) > 10, path


def test_a_type_without_a_structural_form_is_refused_by_the_name_of_its_field() -> None:
    class Odd(BaseModel):
        either: int | str

    with pytest.raises(ValueError, match=r"Odd\.either: is of several types"):
        schema_of(Odd)


def test_what_is_written_twice_in_a_definition_is_no_alias_in_yaml() -> None:
    for content in files().values():
        assert "&id" not in content
        yaml.safe_load(content)

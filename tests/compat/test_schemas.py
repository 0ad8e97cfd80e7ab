"""The JSON Schemas of compat/schemas/: the committed files satisfy them, and each kind of broken file does not."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.checkout import COMPAT, REPOSITORY
from unhang.shapes import catalog

SCHEMAS = sorted((COMPAT / "schemas").glob("*.json"))


def files(name: str) -> list[Path]:
    """The files that a schema is for."""
    if name == "manifest":
        return sorted(REPOSITORY.glob("patches/*/manifest.json"))
    if name == "facts":
        return sorted(COMPAT.glob("data/*.json"))
    if name == "pack":
        return []  # ours is the package itself
    if name == "upstream":
        return sorted(REPOSITORY.glob("upstreams/*.json"))
    return [COMPAT / f"{name}.json"]


def errors(name: str, document: Any) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")  # here, as it takes a second, and each process loads this module
    schema = json.loads((COMPAT / "schemas" / f"{name}.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)]


def test_every_file_has_a_schema() -> None:
    covered = {path for schema in SCHEMAS for path in files(schema.stem)}
    ours = (*COMPAT.glob("*.json"), *COMPAT.glob("data/*.json"))
    assert covered == {*ours, *REPOSITORY.glob("patches/*/manifest.json"), *REPOSITORY.glob("upstreams/*.json")}
    assert len(files("manifest")) == len(catalog.fixes())


def every_object(schema: Any) -> Iterator[dict[str, Any]]:
    """The sub-schemas that list properties."""
    if isinstance(schema, dict) and "properties" in schema and schema.get("type") == "object":
        yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from every_object(inner)


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_a_schema_refuses_unknown_keys_and_its_committed_files_satisfy_it(path: Path) -> None:
    schema = json.loads(path.read_bytes())
    assert schema["title"]
    assert schema["description"]
    assert all(item["additionalProperties"] is False for item in every_object(schema))
    assert "$ref" not in path.read_text()
    assert bool(files(path.stem)) == (path.stem != "pack")
    for file in files(path.stem):
        assert errors(path.stem, json.loads(file.read_bytes())) == []


def affected(document: Any) -> Any:
    return next(row for row in document["shapes"].values() if row["state"] == "affected")


PACK = {"schema": 1, "name": "a", "version": "1.0", "requires-unhang": ">=0.1,<1"}
# The schema, what is done to a copy of its file, and a part of the message.
BROKEN: dict[str, tuple[str, Callable[[Any], object], str]] = {
    "unknown key of a file": ("releases", lambda it: it.update(more=2), "'more' was unexpected"),
    "another format": ("releases", lambda it: it.update(schema=2), "1 was expected"),
    "unknown state": ("facts", lambda it: affected(it).update(state="needed"), "'needed' is not one of"),
    "no result": ("facts", lambda it: affected(it).pop("result"), "'result' is a required property"),
    "no names": ("facts", lambda it: affected(it).pop("names"), "'names' is a required property"),
    "a result of a fixed shape": ("facts", lambda it: affected(it).update(state="fixed"), "False schema does not"),
    "not seen anywhere": (
        "facts",
        lambda it: [affected(it).pop(key, None) for key in ("first", "last", "note")],
        "is not valid under any of the given schemas",
    ),
    "bad digest of a shape": ("facts", lambda it: it["shapes"].update({"f 12": {"state": "ours"}}), "'f 12' does not"),
    "bad digest of a file": ("facts", lambda it: it["files"].update({"ab": {"f": None}}), "'ab' does not match"),
    "missing key of a pin": ("wheels", lambda it: it["wheels"]["verl"][0].pop("sha256"), "'sha256' is a required"),
    "a pack for any unhang": ("pack", lambda it: it.pop("requires-unhang"), "'requires-unhang' is a required"),
    "a name with a space": ("pack", lambda it: it.update(name="a b"), "'a b' does not match"),
    "a range in words": ("pack", lambda it: it.update({"requires-unhang": "~=1"}), "'~=1' does not match"),
    "no marks": ("upstream", lambda it: it.pop("marks"), "'marks' is a required"),
    "a path that leads out": ("upstream", lambda it: it["version"].update(file="a/../../b"), "does not match"),
    "a mark from the root": ("upstream", lambda it: it.update(marks=["/etc"]), "'/etc' does not match"),
    "two names": ("upstream", lambda it: it["version"].update(file="a.py", names=["A", "B"]), "is not valid under any"),
    "missing key of a pull request": ("manifest", lambda it: it["as-written"][0].pop("ref"), "'ref' is a required"),
    "no reason": ("manifest", lambda it: it["decisions"][0].update(why="so"), "'so' is too short"),
    "no state": ("manifest", lambda it: it["decisions"][0].pop("state"), "'state' is a required property"),
    "short id of a commit": (
        "swept",
        lambda it: it["swept"]["verl"].update({"refs/heads/main": "1234567"}),
        "'1234567' does not match",
    ),
    "worse": ("facts", lambda it: affected(it)["endstate"].update(worse=1), "0 was expected"),
    "no generation": ("generation", lambda it: it.update(generation=0), "0 is less than the minimum"),
    "bad digest of an outline": ("facts", lambda it: affected(it).update(outline="1"), "'1' does not match"),
    "unknown key of a manifest": ("manifest", lambda it: it.update(affect={}), "'affect' was unexpected"),
    "no grade": ("manifest", lambda it: it.pop("grade"), "'grade' is a required property"),
    "another grade": ("manifest", lambda it: it.update(grade="remedy"), "'remedy' is not one of"),
    "no kinds": ("manifest", lambda it: it.pop("kinds"), "'kinds' is a required property"),
    "not one kind": ("manifest", lambda it: it["kinds"].clear(), "[] should be non-empty"),
    "a kind twice": ("manifest", lambda it: it.update(kinds=["hang", "hang"]), "has non-unique elements"),
    "another kind": ("manifest", lambda it: it["kinds"].append("crash"), "'crash' is not one of"),
    "nothing about numbers": ("manifest", lambda it: it.pop("changes-numbers"), "'changes-numbers' is a required"),
    "numbers in words": ("manifest", lambda it: it.update({"changes-numbers": "no"}), "'no' is not of type 'boolean'"),
    "missing key of a target": ("manifest", lambda it: it["targets"][0].pop("function"), "'function' is a required"),
    "no target": ("manifest", lambda it: it["targets"].clear(), "[] should be non-empty"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused(name: str) -> None:
    schema, change, message = BROKEN[name]
    documents = (json.loads(path.read_bytes()) for path in files(schema)) if schema != "pack" else iter([{**PACK}])
    document = next(found for found in documents if schema != "manifest" or {"decisions", "as-written"} <= {*found})
    change(document)
    assert [error for error in errors(schema, document) if message in error], errors(schema, document)[:3]


def test_each_schema_is_shown_to_refuse_something() -> None:
    assert {schema for schema, _, _ in BROKEN.values()} == {schema.stem for schema in SCHEMAS}

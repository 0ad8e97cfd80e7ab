"""JSON of others: as `jsonschema` judges it, by the schemas that we have, and nothing that acts on a terminal."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from support.checkout import COMPAT, REPOSITORY
from unhang.plugins import checked

SCHEMAS = {path.stem: json.loads(path.read_bytes()) for path in (COMPAT / "schemas").glob("*.json")}
FILES = {
    "manifest": sorted(REPOSITORY.glob("patches/*/manifest.json")),
    "facts": sorted(COMPAT.glob("data/*.json"), key=lambda path: path.stat().st_size)[:3],
    "upstream": sorted(REPOSITORY.glob("upstreams/*.json")),
}
PACK = {"schema": 1, "name": "a-pack", "version": "1.0rc1", "requires-unhang": ">=0.1,<2"}
DOCUMENTS = [(name, json.loads(path.read_bytes())) for name, paths in FILES.items() for path in paths]
DOCUMENTS.append(("pack", PACK))
VALUES: list[Any] = [None, True, 0, -1, 1, 2.5, "", "x", "a/../b", "/etc", "x" * 500, [], ["x", "x"], {}, {"x": 1}]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in a document: the container, and the key or index."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *places(value[key]))]


def changed(document: Any, dice: random.Random) -> Any:
    """Return a copy of a document in which something is replaced, removed or added."""
    made = copy.deepcopy(document)
    container, key = dice.choice(places(made))
    how = dice.randrange(3)
    if how == 0:
        container[key] = dice.choice(VALUES)
    elif how == 1:
        del container[key]
    elif isinstance(container, dict):
        container[dice.choice(["more", "schema", "id"])] = dice.choice(VALUES)
    else:
        container.append(dice.choice(VALUES))
    return made


def test_it_judges_as_jsonschema_does() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validators = {name: jsonschema.Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
    dice, refused = random.Random(31), 0
    for number in range(1000):
        name, document = DOCUMENTS[number % len(DOCUMENTS)]
        made = changed(document, dice) if number >= len(DOCUMENTS) else document
        wrong = next(checked.problems(made, SCHEMAS[name]), None)
        theirs = next(validators[name].iter_errors(made), None)
        assert (wrong is None) == (theirs is None), (name, wrong, theirs and theirs.message)
        refused += wrong is not None
    assert 500 < refused < 990


def test_every_word_of_the_schemas_is_known() -> None:
    for name, schema in SCHEMAS.items():
        if name in ("manifest", "facts", "upstream", "pack"):
            for value in VALUES:
                list(checked.problems(value, schema))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' is there twice"),
        ('{"a": NaN}', "NaN is not a number of JSON"),
        ('["\\u001b[2J"]', "not printable"),
        ('["a\\n::error::b"]', "not printable"),
        ('["::error::b"]', "a command of a CI runner"),
        ('{"##vso[x]": 1}', "a command of a CI runner"),
        ('["\\ud800"]', "not printable"),
        ("[" * 10**6, "nested too deeply"),
        ("[" * 5000 + "]" * 5000, "nested too deeply"),  # no depth at which Python's own parser gives up
        ("{" + '"a": {' * 2000 + "}" * 2001, "nested too deeply"),
        ("{" + "".join(f'"{number}": 0, ' for number in range(200_000)) + '"x": 1, "x": 1}', "'x' is there twice"),
        ("1" * 10_000, "Exceeds"),
        ("[NaN]", "NaN is not a number"),
        ("{", "Expecting"),
    ],
)
def test_what_is_refused_whatever_the_schema(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("[", r"\[")) as caught:
        checked.parsed(text.encode(), True)
    assert str(caught.value).isprintable()
    assert checked.parsed(b'["\xc3\xa9: x", 1.5]', True) == ["\u00e9: x", 1.5]


def test_ours_would_pass_as_those_of_a_pack(tmp_path: Path) -> None:
    for name, paths in FILES.items():
        for path in paths:
            assert checked.parsed(path.read_bytes(), SCHEMAS[name])


def test_a_number_may_have_a_fraction_and_is_no_truth_value() -> None:
    share = {"type": "number", "minimum": 0, "maximum": 1}
    assert [[*checked.problems(value, share)] == [] for value in (0.25, 1, True, "1", 1.5)] == [
        True, True, False, False, False,
    ]  # fmt: skip

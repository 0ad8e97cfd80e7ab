"""What a fix consists of: each part is found by the fix's id, and each one that is missing or wrong is named.

The parts are read, and none of the fix's tests is run.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unhang.compat.sweep.rules import Problem
from unhang.judge import scene
from unhang.plugins import packs
from unhang.shapes import facts
from unhang.shapes.catalog import UNPROVED
from unhang.tell import fix_page

SECTIONS = (*fix_page.FRONT, "Not cured", "Cause", "What unhang changes", "Evidence", "Links")
"""The sections that every page has, in this order: first what a reader in need must know."""
EVERY_NODE = "every node"
"""What the danger has if the rewrite changes which collectives run."""
NUMBERS = "Your numbers change"
"""What the danger has if the fix changes numbers."""
TODO = "TODO"
"""What a draft has where a person must write."""
SCENE = ("GRID", "settings", "prepare", "on_rank", "wrong", "right")
"""What every scene has."""
SESSIONS = {"MUTANTS": "mutants", "PROOFS": "proofs", "FUZZ": "fuzz", "HANGS": "tests"}
"""What a fix's test module has, and the session that reads it. Only a signature needs the last."""


def names(checkout: Path) -> list[str]:
    """Return the folders of patches/ that have a manifest or a page."""
    folders = {path.parent.name for name in ("manifest.json", "page.md") for path in checkout.glob(f"patches/*/{name}")}
    return sorted(folders)


def problems(checkout: Path, name: str) -> Iterator[Problem]:
    """Yield what is missing or wrong in the parts of the fix with this id."""
    manifest = yield from _manifest(checkout, name)
    if manifest.get("grade") == UNPROVED:
        yield Problem(f"patches/{name}/manifest.json", "grade", "an unproved fix is for a pack of one's own")
    targets = manifest.get("targets", ())
    yield from _page(checkout, name, manifest)
    if not (checkout / f"patches/{name}/drawing.json").exists():
        yield Problem(f"patches/{name}/drawing.json", name, "is missing: it names the case that is drawn; copy another")
    yield from _codemod(checkout, name, targets)
    yield from _scene(checkout, name)
    yield from _tests(checkout, name, manifest)
    yield from _todo(checkout, name)


def limit(checkout: Path, name: str, key: str) -> int:
    """Return a limit of what a fix has beside its manifest, whose schema has them all."""
    value: int = _schema(checkout)["$defs"][name][key]
    return value


def _schema(checkout: Path) -> Any:
    return json.loads((checkout / "compat" / "schemas" / "manifest.json").read_bytes())


def _manifest(checkout: Path, name: str) -> Generator[Problem, None, Mapping[str, Any]]:
    """Yield what is wrong with the manifest; return it, or an empty one if nothing else can be said of it."""
    from jsonschema import Draft202012Validator

    where = f"patches/{name}/manifest.json"
    try:
        manifest: dict[str, Any] = facts.read(str(checkout / where))
    except FileNotFoundError:
        yield Problem(where, name, "is missing; copy another one")
        return {}
    except ValueError as error:
        yield Problem(where, name, f"is no JSON: {error}")
        return {}
    found = sorted(Draft202012Validator(_schema(checkout)).iter_errors(manifest), key=lambda error: error.json_path)
    for wrong in found:
        meant = f" ({wrong.schema['description']})" if "description" in wrong.schema else ""
        yield Problem(where, wrong.json_path.removeprefix("$.").replace("$", "manifest"), f"{wrong.message}{meant}")
    if found:
        return {}
    if manifest["id"] != name:
        yield Problem(where, "id", f"is {manifest['id']}, but the folder is {name}")
    return manifest


def _page(checkout: Path, name: str, manifest: Mapping[str, Any]) -> Iterator[Problem]:
    where = f"patches/{name}/page.md"
    try:
        page = (checkout / where).read_text(encoding="utf-8")
    except FileNotFoundError:
        yield Problem(where, name, "is missing: it is what `unhang explain` prints")
        return
    if not page.startswith(f"# {name}\n"):
        yield Problem(where, "line 1", f"is not `# {name}`")
    longest = limit(checkout, "page-line", "maxLength")
    for number, line in enumerate(page.splitlines(), 1):
        if len(line) > longest or not line.isascii():
            yield Problem(where, f"line {number}", f"is longer than {longest} characters, or not ASCII")
    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    yield from (Problem(where, section, "this section is missing") for section in SECTIONS if section not in titles)
    found = [title for title in titles if title in SECTIONS]
    if found != sorted(found, key=SECTIONS.index):
        yield Problem(where, "sections", f"are not in this order: {', '.join(SECTIONS)}")
    text = {title: page.partition(f"\n## {title}\n")[2].partition("\n## ")[0] for title in SECTIONS}
    if manifest.get("changes-numbers") and NUMBERS not in " ".join(text["Danger"].split()):
        yield Problem(where, "Danger", f"does not say `{NUMBERS}`, and the manifest says that they do")
    if manifest.get("collectives") and EVERY_NODE not in " ".join(text["Danger"].split()):
        yield Problem(where, "Danger", f"does not say `{EVERY_NODE}`, and the rewrite changes which collectives run")
    if manifest and not text["Evidence"].startswith(f"Grade: {manifest['grade']}. "):
        yield Problem(where, "grade", f"`Grade: {manifest['grade']}. ` does not begin the evidence")
    if manifest and ("Not shown" in text["Evidence"].partition("\n\n")[0]) != (manifest["grade"] == "safeguard"):
        yield Problem(
            where, "grade", "the evidence of a safeguard first says what is `Not shown`, that of a cure does not"
        )


def _codemod(checkout: Path, name: str, targets: Sequence[Mapping[str, str]]) -> Iterator[Problem]:
    """Yield what is wrong with the codemod; without targets, as of a manifest that is wrong, nothing of what it has."""
    where = _module(checkout, "codemods", name)
    if where is None:
        yield Problem(f"codemods/{_named(name)}.py", name, "is missing: it has the rewrite")
        return
    try:
        found = sorted(importlib.import_module(f"unhang.codemods.{_named(name)}").CODEMODS)
    except Exception as error:
        yield Problem(where, "CODEMODS", f"cannot be read: {type(error).__name__}: {error}")
        return
    functions = {target["function"] for target in targets}
    for function in sorted(functions ^ {*found}) if functions else ():
        has = "no rewrite of this target" if function in functions else "no target of the manifest has this rewrite"
        yield Problem(where, function, has)
    longest = min((packs.upstreams()[target["upstream"]].width for target in targets), default=120)
    for number, row in enumerate((checkout / where).read_text(encoding="utf-8").splitlines(), 1):
        comment = re.sub(r"(\\n)?[\"',)]*$", "", row[row.find(f"# unhang {name}: ") :]) if "# unhang" in row else ""
        if len(comment) + 4 > longest:
            yield Problem(where, f"line {number}", f"a line of upstream's has {longest} columns, with its indentation")


def _scene(checkout: Path, name: str) -> Iterator[Problem]:
    where = _module(checkout, "src/unhang/prove/fixes", name)
    if where is None:
        missing = "is missing: without a scene, every shape is left to a person"
        yield Problem(f"src/unhang/prove/fixes/{_named(name)}.py", name, missing)
        return
    try:
        lacking = [it for it in SCENE if not hasattr(scene.proof(name), it)]
    except Exception as error:
        yield Problem(where, "GRID", f"cannot be read: {type(error).__name__}: {error}")
        return
    for part in lacking:
        yield Problem(where, part, "is missing: see docs/maintainers/scenes.md")


def _tests(checkout: Path, name: str, manifest: Mapping[str, Any]) -> Iterator[Problem]:
    where = f"tests/fixes/test_{_named(name)}.py"
    if not (checkout / where).exists():
        yield Problem(where, name, "is missing: nothing tests the fix")
        return
    body = ast.parse((checkout / where).read_bytes()).body
    bound = {alias.asname or alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    bound |= {
        place.id
        for node in body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for place in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(place, ast.Name)
    }
    needless = () if "signature" in manifest else ["HANGS"]
    for wanted, session in SESSIONS.items():
        if wanted not in {*bound, *needless}:
            yield Problem(where, wanted, f"is missing: `nox -s {session}` reads it, see CONTRIBUTING.md")


def todo(checkout: Path, name: str) -> Iterator[tuple[str, int, str]]:
    """Yield the file, the number and the text of each line that is still to be written."""
    modules = (_module(checkout, folder, name) for folder in ("codemods", "src/unhang/prove/fixes"))
    test = f"tests/fixes/test_{_named(name)}.py"
    for where in filter(None, (f"patches/{name}/manifest.json", f"patches/{name}/page.md", *modules, test)):
        path = checkout / where
        rows = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        yield from ((where, number, row.strip()) for number, row in enumerate(rows, 1) if TODO in row)


def _todo(checkout: Path, name: str) -> Iterator[Problem]:
    for where, rows in itertools.groupby(todo(checkout, name), lambda row: row[0]):
        lines = ", ".join(str(number) for _, number, _ in rows)
        yield Problem(where, TODO, f"is still to be written, on line {lines}")


def _module(checkout: Path, folder: str, name: str) -> str | None:
    """Return the module, or the package, of a fix in this folder; None if it has none."""
    found = (f"{folder}/{_named(name)}.py", f"{folder}/{_named(name)}/__init__.py")
    return next((path for path in found if (checkout / path).exists()), None)


def _named(name: str) -> str:
    """Return the name of a fix's modules."""
    return name.replace("-", "_")

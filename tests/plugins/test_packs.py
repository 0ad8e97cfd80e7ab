"""Upstreams are data: no module of the tool names one, and a new one is a file."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import environments as make
from support import rooms
from unhang.find.environment import choose, for_target
from unhang.find.locate import search
from unhang.plugins import packs

# What fixes share may name upstreams, as they do.
OF_FIXES = ("unhang.codemods.", "unhang.prove.fixes.", "unhang.prove.ranks.")


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the texts in a module that are no docstrings, each with its line."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


def naming() -> dict[str, list[str]]:
    """Return where modules of the tool, and of the sweep, name an upstream."""
    words = {one.name for one in packs.upstreams().values()} | {one.distribution for one in packs.upstreams().values()}
    words |= {part for one in packs.upstreams().values() for part in (one.parts[0], one.dist_info)}
    name = re.compile(rf"(?<![A-Za-z])({'|'.join(map(re.escape, sorted(words)))})(?![A-Za-z]|[\w.-]*==)")
    sweep = {f"unhang.compat.sweep.{path.stem}": path for path in (rooms.ROOT / "compat" / "sweep").glob("*.py")}
    found: dict[str, list[str]] = {}
    for module, path in {**rooms.modules(), **sweep}.items():
        for line, text in literals(ast.parse(path.read_bytes())):
            if name.search(text):
                found.setdefault(module, []).append(f"{path}:{line}: {text[:80]!r}")
    return found


def test_no_module_of_the_tool_names_an_upstream() -> None:
    found = naming()
    others = {name: places for name, places in found.items() if not name.startswith(OF_FIXES)}
    assert others == {}


def test_the_upstreams_are_those_of_the_files_in_their_order() -> None:
    files = {path.stem for path in (rooms.ROOT / "upstreams").glob("*.json")}
    assert {*packs.names()} == files
    assert packs.names()[:4] == ("megatron-core", "megatron-lm", "verl", "ms-swift")
    for name, upstream in packs.upstreams().items():
        assert upstream.within is None or packs.upstreams()[upstream.within].within is None, name
        assert upstream.within or {"floor", "repository", "refs", "tips"} <= upstream.about.keys(), name


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Let there be upstreams of other folders; yield the folder of their files."""
    folder = tmp_path / "upstreams"
    folder.mkdir()
    monkeypatch.setattr(packs, "folder", lambda name: str(folder))
    packs.upstreams.cache_clear()
    packs.modules.cache_clear()
    yield folder
    packs.upstreams.cache_clear()
    packs.modules.cache_clear()


ABOUT = {"schema": 1, "import-name": "a.b.c", "distribution": "a-b", "marks": ["__init__.py"], "version": {}}
VERSIONS = [
    ({}, {"a_b-1.2.3.dist-info/RECORD": "a/b/c/__init__.py,,\n"}, "1.2.3"),
    ({}, {"a_b-1.2.3.dist-info/RECORD": "a/b/d/__init__.py,,\n"}, None),
    (
        {"file": "a/b/_version.py", "names": ["__version__"]},
        {"a/b/_version.py": "__version__ = version = '1.4'\n"},
        "1.4",
    ),
    ({"file": "a/b/c/v.py", "names": ["V"]}, {"a/b/c/v.py": "V = X == '1.4'\n"}, None),
    ({"file": "a/b/c/VERSION"}, {"a/b/c/VERSION": "2.0\n"}, "2.0"),
    ({"file": "a/VERSION"}, {}, None),
]


@pytest.mark.parametrize(("stated", "files", "version"), VERSIONS)
def test_an_upstream_that_is_only_a_file_is_found_with_its_version(
    stated: dict[str, object], files: dict[str, str], version: str | None, another: Path, tmp_path: Path
) -> None:
    (another / "abc.json").write_text(json.dumps({**ABOUT, "version": stated}))
    site = make.write(tmp_path / "site", {"a/b/c/__init__.py": "", **files})
    (found,) = search(for_target(str(site)), cwd="/").installations
    assert (found.upstream, found.version, found.package_dir) == ("abc", version, str(site / "a" / "b" / "c"))


def test_an_interpreter_is_asked_for_it_too(another: Path, tmp_path: Path) -> None:
    (another / "abc.json").write_text(json.dumps(ABOUT))
    (another / "a.json").write_text(json.dumps({**ABOUT, "import-name": "alone"}))
    env = make.make_env(tmp_path / "venv")
    make.write(env.site, {"a/b/__init__.py": "", "a/b/c/__init__.py": "", "alone/__init__.py": ""})
    found = search(choose(str(env.python), "/", {}), cwd="/")
    assert [copy.upstream for copy in found.installations] == ["a", "abc"]

"""The content of an overlay: its hook, its manifest, its identity."""

import ast
import json

from support.plans import file_plan
from unhang.deliver import overlay
from unhang.find.overlays import MARK

FILES = [file_plan("verl/a.py"), file_plan("verl/b/__init__.py")]


def test_the_modules_are_in_the_hook_and_in_the_manifest_with_their_digests() -> None:
    composed = overlay.compose(FILES)
    assert composed.modules == ("verl.a", "verl.b")
    assert composed.hook.startswith(MARK)
    assert repr(composed.modules).encode() in composed.hook
    assert repr(composed.identity).encode() in composed.hook
    assert composed.files["modules/verl/b/__init__.py"] == b"after verl/b/__init__.py"
    entry = json.loads(composed.files["manifest.json"])["modules"]["verl.a"]
    assert (entry["file"], entry["version"], entry["fixes"]) == ("verl/a.py", "0.7.1", ["mtp-cp-deadlock"])
    assert entry["original"] != entry["rewritten"]


def test_it_depends_on_the_files_and_not_on_where_they_are() -> None:
    moved = [file._replace(path=f"/elsewhere/{number}") for number, file in enumerate(FILES)]
    assert overlay.compose(reversed(moved)) == overlay.compose(FILES)
    assert overlay.compose([FILES[0], FILES[1]._replace(after=b"other")]).identity != overlay.compose(FILES).identity


def test_the_hook_has_only_what_it_executes() -> None:
    tree = ast.parse(overlay.compose(FILES).hook)
    assert tree.body
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Assert)
        assert getattr(node, "annotation", None) is None or isinstance(node, ast.AnnAssign)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            assert ast.get_docstring(node) is None

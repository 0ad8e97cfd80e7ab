"""What a sweep of some fixes leaves as it is. ``test_generate.py`` runs whole sweeps."""

from __future__ import annotations

import json
from pathlib import Path

from support.checkout import COMPAT
from unhang.compat.sweep import gather, matrix_files, merged
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.collect import Collection
from unhang.compat.sweep.learnt import Learnt
from unhang.compat.sweep.settle import Settled
from unhang.shapes.catalog import Target

NOTHING = Settled([], {}, [], [], {})


def test_a_sweep_of_no_fix_gives_the_files_on_record(tmp_path: Path) -> None:
    learnt = Learnt(Cache(tmp_path))
    found = merged.texts(COMPAT, gather.targets(), Collection([], learnt), learnt, NOTHING)
    assert set(found) == {f"data/{name}.json" for name in ("shapes", "files", "releases", "outlines")}
    assert [name for name, text in found.items() if text != (COMPAT / name).read_text(encoding="utf-8")] == []


def test_what_two_fixes_have_in_common_stays(tmp_path: Path) -> None:
    """Fixes ``a`` and ``b`` are about ``f`` of one file, ``b`` about ``g`` too; ``b`` is swept, and finds nothing."""
    first, same, other = (Target(fix, "core", "m.py", function) for fix, function in ("af", "bf", "bg"))
    data = tmp_path / "data"
    outlines = [{"function": name, "shape": "1", "outline": "01234567"} for name in "fg"]
    rows = [{"fix": fix, "function": function, "shape": "1"} for fix, function in ("af", "bf", "bg")]
    files = {"a" * 64: {"f": "1", "g": "1"}, "b" * 64: {"g": "1"}}
    releases = {"core": {"targets": ["m.py::f", "m.py::g"], "versions": {"1.0": {"shapes": ["1", "1"]}}}}
    documents = {"shapes": rows, "files": files, "releases": releases, "outlines": outlines}
    for name, document in documents.items():
        more = {"kinds": {"01234567": "If"}, "blocks": {}} if name == "outlines" else {}
        matrix_files.write({str(data / f"{name}.json"): json.dumps({"schema": 1, name: document, **more})})
    learnt = Learnt(Cache(tmp_path))
    collection = Collection([same, other], learnt)
    collection.shapes = {("core", "1.0", target): None for target in (same, other)}
    found = merged.texts(tmp_path, [first, same, other], collection, learnt, NOTHING)
    after = {name: json.loads(found[f"data/{name}.json"])[name] for name in documents}
    assert after["shapes"] == rows[:1]
    assert after["files"] == {"a" * 64: {"f": "1"}}
    assert after["outlines"] == outlines[:1]
    assert after["releases"]["core"]["targets"] == ["m.py::f", "m.py::g"], "each once"

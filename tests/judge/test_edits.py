"""Edits of real functions that have a fix in them, upstream's own or ours: no check of the code settles one."""

import ast
import base64
import copy
import hashlib
import textwrap
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from support import sources, wheels
from support.edits import BREAKING, UNDOING
from support.environments import write
from unhang.find import metadata
from unhang.judge.decide import SETTLED, Verdict
from unhang.judge.findings import decided
from unhang.judge.observe import Observation, observe_bytes
from unhang.records import Installation
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import OutlineTable, Target
from unhang.shapes.shape import Function


class Base(NamedTuple):
    """A release with upstream's own fix of a function; or, if the rewrite is ours, with the defect."""

    fix: str
    version: str
    upstream: str
    function: str
    ours: bool = True


BASES = [
    Base("allgather-empty-expert", "0.19.2", "megatron-core", "MoEAllGatherTokenDispatcher.dispatch_postprocess"),
    Base("empty-expert-hang", "0.19.2", "megatron-core", "TEGroupedMLP.forward"),
    Base("expert-dp-warmup", "0.19.2", "megatron-core", "initialize_model_parallel"),
    Base("fsdp-dynamic-bsz", "0.7.1", "verl", "DataParallelPPOActor.update_policy"),
    Base("fsdp2-buffer-order", "0.9.1", "verl", "fsdp2_load_full_state_dict", ours=False),
    Base("hybrid-aux-tracker-hang", "0.19.2", "megatron-lm", "training_log"),
    Base("infer-metric-rank0", "4.6.0", "ms-swift", "compute_rouge_bleu"),
    Base("mean-metric-dtype", "4.6.0", "ms-swift", "MeanMetric.compute", ours=False),
    Base("moe-aux-tracker-hang", "0.19.2", "megatron-core", "track_moe_metrics", ours=False),
    Base("mtp-cp-deadlock", "0.9.1", "verl", "MegatronEngine.forward_backward_batch", ours=False),
    Base("sft-packed-seq-broadcast", "0.19.2", "megatron-core", "get_batch_on_this_tp_rank", ours=False),
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closest known shape takes long to find, and changes no verdict: see ``test_decide``."""
    monkeypatch.setattr(catalog, "outlines", lambda fix: OutlineTable({}, {}, {}))
    metadata.read.cache_clear()


# -- edits of any function ---------------------------------------------------------------------------------------------


_MARKED = [pytest.param(base, marks=[pytest.mark.slow] if base.ours else [], id=base.fix) for base in BASES]


@pytest.mark.slow
@pytest.mark.parametrize("base", _MARKED)
def test_ten_edits_of_a_function_with_a_fix_are_left_to_a_person(base: Base, tmp_path: Path) -> None:
    function, edits = loaded(base)[1], 0
    for edit in BREAKING:
        changed = copy.deepcopy(function)
        edit(changed)
        if ast.dump(changed) != ast.dump(function):
            edits += 1
            for place, verdict in verdicts(base, changed, tmp_path / edit.__name__).items():
                assert verdict.verdict not in SETTLED, (edit.__name__, place, verdict)
    assert edits >= 10


# -- five edits that undo upstream's fix, and that a short check does not see ------------------------------------------


@pytest.mark.parametrize("base", [base for base in BASES if base.fix in UNDOING], ids=lambda base: base.fix)
def test_an_edit_that_deceives_the_short_check_settles_nothing(base: Base, tmp_path: Path) -> None:
    changed = copy.deepcopy(loaded(base)[1])
    UNDOING[base.fix](changed)
    found = verdicts(base, changed, tmp_path)
    for place, verdict in found.items():
        assert verdict.verdict == ("drifted" if place.startswith("its own number") else "unlisted"), (place, verdict)
        assert verdict.as_is is not place.startswith("its own number"), "the check is deceived"


# -- where they are judged --------------------------------------------------------------------------------------------


@cache
def loaded(base: Base) -> tuple[sources.Source, Function]:
    """A release's file, and its function with the fix."""
    source = sources.wheel(base.fix, base.version, base.upstream, base.function)
    assert source.known.state == ("affected" if base.ours else "fixed")
    return source, (source.rewritten if base.ours else source).function


def verdicts(base: Base, changed: Function, root: Path) -> dict[str, Verdict]:
    """The verdicts on a changed function, in packages that are not what upstream has published."""
    target, data = loaded(base)[0].target, module(base, changed)
    seen, ours = (
        observe_bytes("/x", text, target.function, {}) for text in (data, data + b"# unhang another-fix: why\n")
    )
    assert seen.shape is not None

    def judged(version: str, listed: bytes, seen: Observation, **more: str) -> Verdict:
        folder = root / str(len(list(root.glob("*")))) / f"{base.upstream}-{version}.dist-info"
        digest = base64.urlsafe_b64encode(hashlib.sha256(listed).digest()).rstrip(b"=").decode()
        write(folder, {"RECORD": f"{target.file},sha256={digest},{len(listed)}\n", "INSTALLER": "pip\n", **more})
        where = Installation(base.upstream, version, "", "", "", "wheel", str(folder / "RECORD"), ())
        return decided(where, target, None, seen, look)

    def look(_: Installation, other: Target) -> Observation:
        beside = wheels.read(base.upstream, base.version, other.file)
        assert beside is not None
        return observe_bytes("/y", beside, other.function, catalog.shape_table().of_files(other.fix))

    return {
        "its own number": judged(base.version, b"", seen),
        "its own number, RECORD made right": judged(base.version, data, seen),
        "a later number, edited in place": judged("99.0", b"", seen),
        "a later number, by another fix of ours": judged("99.0", ours.data or b"", ours),
        "a later number, from a path": judged("99.0", data, seen, **{"direct_url.json": "{}"}),
        "a later number with a label": judged("99.0+acme.1", data, seen),
    }


def module(base: Base, changed: Function) -> bytes:
    """A file with this function and the release's imports, which is much faster to judge than the release's."""
    source = loaded(base)[0]
    *outer, _ = base.function.split(".")
    text = ast.unparse(ast.fix_missing_locations(changed))
    for name in reversed(outer):
        text = f"class {name}:\n{textwrap.indent(text, '    ')}"
    imports = (ast.unparse(it) for it in shape.parse(source.data).body if isinstance(it, (ast.Import, ast.ImportFrom)))
    return "\n".join((*imports, text)).encode()

"""The findings: every fix on every installation that has a target of it, with what the receipt says."""

import sys
from pathlib import Path

import pytest

from support import gates
from support.gates import DEPENDENT, GATE, NEVER, ONE, OTHER_RUN, PAUSE, PULLED, RIGHT, RUN, STOP, TWO, WRONG
from unhang.errors import UnhangError
from unhang.find.overlays import Module, Overlay, sha256
from unhang.judge.accept import named
from unhang.judge.decide import Past
from unhang.judge.findings import judge
from unhang.judge.overlaid import overlaid
from unhang.records import Token
from unhang.rewrite.plan import plan
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix, Shape


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gates.install(monkeypatch)


def test_each_target_of_each_fix_has_a_finding(tmp_path: Path) -> None:
    where = gates.lay_out(tmp_path, {"verl/one.py": ONE, "verl/two.py": gates.gated(TWO)})
    core = where._replace(upstream="megatron-core")
    found = judge(iter([core, where]), iter([GATE, PAUSE]), {})
    assert [item.target for item in found] == [RUN, OTHER_RUN, STOP], "and none in the other upstream"
    assert [item.verdict.verdict for item in found] == ["needed", "applied", "needed"]
    assert {item.installation for item in found} == {where}
    assert [item.settled for item in found] == [False, True, False]
    assert judge([where], [PAUSE], {}) == found[2:]


def test_what_the_receipt_says_is_found_by_the_real_path(tmp_path: Path) -> None:
    where = gates.lay_out(tmp_path / "real")
    (tmp_path / "linked").symlink_to("real")
    linked = gates.installation(tmp_path / "linked")
    real = str(tmp_path / "real/verl/one.py")
    for key, detail in {
        (real, "gate", "run"): "patched before, and reverted, reinstalled or restored since",
        (str(tmp_path / "linked/verl/one.py"), "gate", "run"): "",
        (real, "pause", "run"): "",
        (real, "gate", "Loop.stop"): "",
    }.items():
        for installation in (where, linked):
            first, *_ = judge([installation], [GATE], {key: [Past("", "")]})
            assert (first.target, first.verdict.detail) == (RUN, detail)


def test_a_function_that_moved_to_another_target_is_judged_there(tmp_path: Path) -> None:
    where = gates.lay_out(tmp_path, {"verl/one.py": "x = 1\n", "verl/two.py": "def run(z): pass\n"})
    for version, verdict in (("9.0", "unlisted"), (where.version, "drifted")):  # outside the matrix; it had it here
        here, there = judge([where._replace(version=version)], [GATE], {})
        assert (here.verdict.verdict, there.verdict.verdict) == ("not-affected", verdict)
        assert here.verdict.detail == "not in this file: it is in verl/two.py, and judged there"
    (tmp_path / "verl/two.py").unlink()
    for version, verdict in (("9.0", "unlisted"), (where.version, "drifted")):
        assert [item.verdict.verdict for item in judge([where._replace(version=version)], [GATE], {})] == [verdict] * 2


OLDER, NEWER = ("Loop.stop", "Loop.start"), ("run", "Loop.run")
SETS = Fix(
    "gate", "a gate", "cure", {},
    tuple(RUN._replace(function=name, set=names[0]) for names in (OLDER, NEWER) for name in names), "",
)  # fmt: skip
PARTS = {
    "Loop.stop": "    def stop(self): pass\n",
    "Loop.start": "    def start(self): pass\n",
    "Loop.run": "    def run(self): pass\n",
    "run": "def run(): pass\n",
}


@pytest.mark.parametrize("version", ["1.0", "9.0", "0.1.0", "1.5", None])
@pytest.mark.parametrize(
    ("there", "gone"),
    [
        (OLDER, ()),
        (NEWER, ()),
        (OLDER + NEWER, ()),
        ((*OLDER, "run"), ()),
        (("run",), ("Loop.run",)),
        (("Loop.start",), ("Loop.stop",)),
        (("run", "Loop.start"), ("Loop.run", "Loop.stop")),
    ],
)
def test_a_set_of_targets_takes_the_place_of_the_others_and_half_of_one_is_no_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str | None, there: tuple[str, ...], gone: tuple[str, ...]
) -> None:
    monkeypatch.setattr(
        sys.modules["unhang.codemods.gate"], "CODEMODS", dict.fromkeys(PARTS, gates.Waits("gate")), raising=False
    )
    code = "class Loop:\n    x = 1\n" + "".join(PARTS[name] for name in PARTS if name in there)
    where = gates.lay_out(tmp_path, {"verl/one.py": code})._replace(version=version)
    found = {finding.target.function: finding.verdict for finding in judge([where], [SETS], {})}
    assert {name for name in found if found[name].code == "function-gone"} == {*gone}
    absent = {*PARTS} - {*there} - {*gone}
    assert {name for name in found if found[name].verdict == "not-affected"} == absent
    assert all("in its place there is " in found[name].detail for name in absent)
    assert all("which goes with it" in found[name].detail for name in gone)


def test_where_nothing_of_any_set_is_there_the_version_says_what_that_means(tmp_path: Path) -> None:
    where = gates.lay_out(tmp_path, {"verl/one.py": "x = 1\n"})
    for version, codes in (
        ("1.0", ["function-gone", None, "function-gone", None]),  # it has run and Loop.stop
        ("9.0", ["newer-than-matrix", None, "newer-than-matrix", None]),
        ("0.1.0", [None] * 4),
        ("1.5", [None] * 4),
    ):
        found = judge([where._replace(version=version)], [SETS], {})
        assert [finding.verdict.code for finding in found] == codes


@pytest.mark.parametrize(
    ("below", "code", "what"),
    [
        ("run = wait(run)\nLoop.stop = wait(Loop.stop)\n", "rebound", "the file binds the function's name again, on "),
        (
            "wait(globals)\n",
            "rebound-unknown",
            "the file runs code that may bind the function's name again, on line 17",
        ),
    ],
)
def test_a_name_that_is_bound_again_settles_nothing(below: str, code: str, what: str, tmp_path: Path) -> None:
    where = gates.lay_out(tmp_path, {"verl/one.py": f"{gates.gated(ONE)}\n\n{below}", "verl/two.py": TWO})
    run, other, stop = judge([where], [GATE, PAUSE], {})
    assert [(one.verdict.verdict, one.verdict.code) for one in (run, stop)] == [("drifted", code)] * 2
    assert what in run.verdict.detail
    assert other.verdict.verdict == "needed"
    assert run.notes == stop.notes == ()
    assert {it.fix for it in plan([run, other, stop], {}).blocked} == {"gate", "pause"}
    assert named([run], [Token("0" * 16, catalog.generation(), "1" * 16)]) == [run], "there is no shape to accept"


@pytest.mark.parametrize("version", ["0.1.0", "1.5", "1.0", "9.0"])
def test_a_function_that_a_file_has_from_elsewhere_is_not_called_absent(tmp_path: Path, version: str) -> None:
    where = gates.lay_out(tmp_path, {"verl/one.py": "from fast import run\nfrom fast import Loop\n"})
    found = judge([where._replace(version=version)], [GATE, PAUSE], {})
    assert {one.verdict.verdict for one in found if one.target.file == "verl/one.py"} <= {"drifted", "unlisted"}
    if version == "0.1.0":
        assert "binds its name on line 1: what runs by that name is elsewhere" in found[0].verdict.detail


@pytest.mark.parametrize("version", ["0.1.0", "1.5", "1.0", "9.0"])
def test_a_method_that_moved_to_a_base_class_is_not_called_absent(version: str, tmp_path: Path) -> None:
    code = ONE.replace("class Loop:", "class Loop(Base):\n    x = 1\n\n\nclass Base:")
    where = gates.lay_out(tmp_path, {"verl/one.py": code, "verl/two.py": TWO})
    (stop,) = (it for it in judge([where._replace(version=version)], [PAUSE], {}) if it.target.function == "Loop.stop")
    assert stop.verdict.verdict in ("drifted", "unlisted")
    assert version == "1.0" or "its class has it from Base, line " in stop.verdict.detail


@pytest.mark.parametrize("how", ["from verl.base import Base", "from .base import Base", "from .base import Base as B"])
def test_nor_is_one_whose_base_class_is_in_another_file_of_the_package(how: str, tmp_path: Path) -> None:
    name = how.rpartition(" ")[2]
    code, base = f"{how}\nclass Loop({name}): pass\n", "from .far import Far\nclass Base(Far): pass\n"
    files = {"verl/one.py": code, "verl/two.py": TWO, "verl/base.py": base, "verl/far.py": ONE.replace("Loop", "Far")}
    where = gates.lay_out(tmp_path, files)._replace(version="1.5")
    (stop,) = (it for it in judge([where], [PAUSE], {}) if it.target.function == "Loop.stop")
    assert (stop.verdict.verdict, stop.verdict.code) == ("drifted", "function-gone")
    assert "its class has it from Far, line " in stop.verdict.detail
    assert "of verl/far.py" in stop.verdict.detail
    (tmp_path / "verl/far.py").write_text("class Far:\n    def stop(self): raise NotImplementedError\n")
    (stop,) = (it for it in judge([where], [PAUSE], {}) if it.target.function == "Loop.stop")
    assert stop.verdict.verdict == "not-affected"


def test_nor_does_that_of_a_function_that_a_target_depends_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gates.install(monkeypatch, gates.shape_table(gates.AGREES))
    where = gates.lay_out(
        tmp_path, {"verl/one.py": gates.gated(ONE), "verl/agree.py": WRONG + "agree = alone(agree)\n"}
    )
    first, _ = judge([where], [DEPENDENT], {})
    assert (first.verdict.verdict, first.verdict.code) == ("drifted", "depends-on-unknown")
    assert "the file binds the function's name again" in first.verdict.detail


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    where = gates.lay_out(tmp_path)
    (tmp_path / "verl/two.py").unlink()
    (tmp_path / "verl/two.py").symlink_to("two.py")
    with pytest.raises(UnhangError) as caught:
        judge([where], [GATE], {})
    assert (caught.value.code, caught.value.path) == ("unreadable", str(tmp_path / "verl/two.py"))
    assert caught.value.hint


EDITED, NEW = ONE.replace("return x", "return x + 1"), WRONG.replace("count if", "count + 1 if")
FIXED, WITHOUT = (
    ONE.replace("    start()\n    return", "    upstream_waits()\n    return"),
    "def run(x):\n    return x\n",
)


@pytest.mark.parametrize(
    ("one", "agree", "verdict", "code", "detail"),
    [
        (ONE, RIGHT, "not-affected", None, "it depends on agree in verl/agree.py, which is right here"),
        (EDITED, RIGHT, "drifted", "unknown-shape", "a shape nobody has verified"),
        (EDITED, PULLED, "drifted", "unknown-shape", "a shape nobody has verified"),
        (ONE, PULLED, "fixed-upstream", None, "which is right here; pull request 7 applied"),
        (ONE, NEVER, "drifted", "depends-on-unknown", "no release or commit on record has this shape of it beside"),
        (gates.gated(ONE), NEVER, "drifted", "depends-on-unknown", "our rewrite is in place, but it depends on"),
        (FIXED, RIGHT, "fixed-upstream", None, ""),
        (FIXED, WRONG, "drifted", "depends-on-unknown", "no release or commit on record has this shape of it beside"),
        (FIXED, NEVER, "drifted", "depends-on-unknown", "upstream's own fix is in this function, but it depends on"),
        (FIXED, NEW, "drifted", "depends-on-unknown", "agree in verl/agree.py: a shape nobody has verified"),
        (FIXED, None, "drifted", "depends-on-unknown", "agree in verl/agree.py: it is not there"),
        (f"from verl.agree import agree\n{FIXED}", RIGHT, "fixed-upstream", None, ""),
        (f"from . import agree\n{FIXED}", RIGHT, "fixed-upstream", None, ""),
        (f"from acme import agree\n{FIXED}", RIGHT, "drifted", "depends-on-unknown", "again, on line 1 of verl/one.py"),
        (f"def agree(): pass\n{ONE}", WRONG, "drifted", "depends-on-unknown", "again, on line 1 of verl/one.py"),
        (f"from verl.agree import x as agree\n{ONE}", WRONG, "drifted", "depends-on-unknown", "on line 1 of"),
        (WITHOUT, NEW, "not-affected", None, ""),
        (ONE, WRONG, "needed", None, ""),
        (EDITED, WRONG, "drifted", "unknown-shape", "a shape nobody has verified"),
        (ONE, NEW, "drifted", "depends-on-unknown", "agree in verl/agree.py: a shape nobody has verified; no known"),
        (EDITED, NEW, "drifted", "unknown-shape", "agree in verl/agree.py: a shape nobody has verified; no known"),
        (ONE, None, "drifted", "depends-on-unknown", "agree in verl/agree.py: it is not there"),
        (ONE, "def agree(:", "drifted", "depends-on-unknown", "agree in verl/agree.py: the file does not parse"),
        (gates.gated(ONE), RIGHT, "applied", None, "edited since"),
        (gates.gated(ONE), WRONG, "applied", None, "edited since"),
        (gates.gated(ONE), NEW, "drifted", "depends-on-unknown", "our rewrite is in place, but it depends on"),
        (gates.gated(EDITED), NEW, "drifted", "unknown-shape", "it depends on agree in verl/agree.py: a shape"),
        ("x = 1\n", RIGHT, "drifted", "function-gone", "but release 1.0 has it"),
    ],
)
def test_the_verdict_rests_on_the_function_that_a_target_depends_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    one: str, agree: str | None, verdict: str, code: str | None, detail: str,
) -> None:  # fmt: skip
    mine = {(gates.RUN, FIXED): Shape("fixed", None, (), "", (gates.shape_of(RIGHT, "agree"),))}
    mine[gates.RUN, WITHOUT] = Shape("not-affected", None, (), "")
    gates.install(monkeypatch, gates.shape_table({**gates.AGREES, **mine}))
    more = {} if agree is None else {"verl/agree.py": agree}
    where = gates.lay_out(tmp_path, {"verl/one.py": one, "verl/two.py": "y = 1\n", **more})
    first, _ = judge([where], [DEPENDENT], {})
    assert (first.verdict.verdict, first.verdict.code) == (verdict, code)
    assert detail in first.verdict.detail
    assert bool(first.verdict.hint) == (verdict in ("needed", "drifted"))
    assert first.depends is not None
    assert (first.depends.data is None) == (agree is None)
    later, _ = judge([where._replace(version="9.0")], [DEPENDENT], {})
    assert later.verdict.verdict == ("unlisted" if verdict == "drifted" else verdict)
    assert ("9.0 is newer than every release in the matrix" in later.verdict.detail) == (code is not None)


WITH = gates.AGREE._replace(file="verl/more/agree.py")
ONLY_WITH = Fix("gate", "a gate", "cure", {}, (gates.RUN._replace(only_with=(gates.AGREE, WITH)),), "")


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        (ONE, {}, "not-affected"),
        (EDITED, {}, "drifted"),
        ("x = 1\n", {}, "not-affected"),
        (gates.gated(ONE), {}, "applied"),
        (ONE, {"verl/agree.py": "x = 1\n"}, "needed"),  # what is in its place, nobody has examined
        ("x = 1\n", {"verl/agree.py": "x = 1\n"}, "not-affected"),
        (ONE, {"verl/agree.py": NEW}, "needed"),
        (ONE, {"verl/more/agree.py": NEW}, "needed"),
        (ONE, {"verl/agree.py": "def agree(:"}, "needed"),
        (ONE, {"verl/agree.py": "agree = 1\n"}, "needed"),
        (EDITED, {"verl/agree.py": NEW}, "drifted"),
        ("def run(:", {}, "drifted"),
    ],
)
def test_a_target_is_wrong_only_with_one_of_some_functions(
    tmp_path: Path, one: str, other: dict[str, str], verdict: str
) -> None:
    where = gates.lay_out(tmp_path, {"verl/one.py": one, **other})
    (found,) = judge([where], [ONLY_WITH], {})
    assert found.verdict.verdict == verdict
    assert ("it is wrong only with agree" in found.verdict.detail) == (verdict == "not-affected")


def test_a_release_that_has_such_a_function_is_not_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = {name: one._replace(shapes={**one.shapes, WITH.place: "0" * 16}) for name, one in gates.releases().items()}
    monkeypatch.setattr(catalog, "releases_of", lambda fix, upstream: known)
    where = gates.lay_out(tmp_path, {"verl/one.py": ONE})
    for version in ("1.0", "9.0"):  # a newer one may have it elsewhere
        (found,) = judge([where._replace(version=version)], [ONLY_WITH], {})
        assert found.verdict.verdict == "needed"


@pytest.mark.parametrize(("more", "verdict"), [({}, "not-affected"), ({"verl/agree.py": NEW}, "needed")])
def test_in_an_overlay_such_a_function_is_that_of_the_installation(
    tmp_path: Path, more: dict[str, str], verdict: str
) -> None:
    where = gates.lay_out(tmp_path / "site", {"verl/one.py": ONE, **more})
    (tmp_path / "one.py").write_text(gates.paused(ONE))
    digests = (sha256(code.encode()) for code in (ONE, gates.paused(ONE)))
    overlay = Overlay(str(tmp_path), {"verl.one": Module(str(tmp_path / "one.py"), *digests)}, "")
    (first,) = judge([where], [ONLY_WITH], {})
    found = overlaid(first, [overlay])
    assert (found.overlay, found.verdict.verdict) == (str(tmp_path), verdict)


def test_a_function_that_a_target_depends_on_and_that_cannot_be_read_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gates.install(monkeypatch, gates.shape_table(gates.AGREES))
    where = gates.lay_out(tmp_path)
    (tmp_path / "verl/agree.py").symlink_to("agree.py")
    with pytest.raises(UnhangError) as caught:
        judge([where], [DEPENDENT], {})
    assert (caught.value.code, caught.value.path) == ("unreadable", str(tmp_path / "verl/agree.py"))


@pytest.mark.parametrize(("agree", "verdict"), [(RIGHT, "not-affected"), (WRONG, "needed"), (NEW, "drifted")])
def test_in_an_overlay_the_verdict_rests_on_the_original_of_that_function(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, agree: str, verdict: str
) -> None:
    gates.install(monkeypatch, gates.shape_table(gates.AGREES))
    where = gates.lay_out(tmp_path / "site", {"verl/one.py": ONE, "verl/two.py": TWO, "verl/agree.py": agree})
    (tmp_path / "one.py").write_text(gates.paused(ONE))  # another fix alone
    digests = (sha256(code.encode()) for code in (ONE, gates.paused(ONE)))
    overlay = Overlay(str(tmp_path), {"verl.one": Module(str(tmp_path / "one.py"), *digests)}, "")
    first, *_ = judge([where], [DEPENDENT], {})
    found = overlaid(first, [overlay])
    assert (found.overlay, found.verdict.verdict) == (str(tmp_path), verdict)

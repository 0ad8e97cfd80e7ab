"""Reports as text and as annotations, the text of an error, and the digest: equal exactly if the code is equal."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import cli, environments
from unhang.cli.main import main
from unhang.errors import UnhangError
from unhang.judge.decide import Verdict
from unhang.judge.findings import Finding
from unhang.judge.observe import Observation
from unhang.plugins import packs
from unhang.records import Environment, Installation, Request, Search
from unhang.shapes import catalog
from unhang.shapes.catalog import Target
from unhang.survey.verdicts import survey
from unhang.tell import report
from unhang.tell.report import Report

CORE, VERL = ("megatron-core", "0.17.1"), ("verl", "0.7.1")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
FILES = sorted({target.file for fix in catalog.fixes().values() for target in fix.functions})
# Neighbours, some of which share all of their target files.
RELEASES = ["0.16.0", "0.16.1", "0.17.0", "0.17.1", "0.18.0", "0.19.0", "0.19.1", "0.19.2"]
HERE = Environment(None, "/job", "--target")
FIX, OTHER = map(catalog.fix, ("allgather-empty-expert", "async-lora-unsynced"))
HANG = Target(FIX.id, "core", "core/a.py", "f")
COPY = Installation("core", "1.0", "/job", "/job", "/job/core", "source", None, ("/old/core",))


def finding(verdict: str, file: str = "core/a.py", *, data: bytes | None = b"", hint: str = "") -> Finding:
    seen = Observation(f"/job/{file}", data, "", None, False, None, "", None)
    return Finding(COPY, HANG._replace(file=file), seen, Verdict(verdict, None, "", hint))


def text(*findings: Finding, interrupted: bool = False, verbose: bool = False) -> list[str]:
    what = Report(Search(HERE, (COPY,), ()), Request(), findings, None, interrupted, {"/job": "git 1a2b3c4d5"})
    return report.text_report(what, verbose=verbose).splitlines()


def digest(
    target: Path | None = None,
    *,
    source: Path | None = None,
    python: Path | None = None,
    upstreams: tuple[str, ...] = packs.names(),
) -> str:
    """Return the digest that ``check`` prints, without a process of its own."""
    named = [str(path) if path else None for path in (python, target, source)]
    request = Request(named[0], named[1], named[2], fixes=tuple(catalog.fixes()), upstreams=upstreams)
    return report.digest(survey(request).findings)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two releases in one folder that no test changes."""
    return cli.unpack_targets(tmp_path_factory.mktemp("pristine") / "site", CORE, VERL)


@pytest.fixture
def site(pristine: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(pristine, tmp_path / "elsewhere" / "site"))


def edit(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda site: (site / ENGINE).write_bytes(change((site / ENGINE).read_bytes()))


def test_the_text_names_the_environment_the_copy_and_what_it_hides() -> None:
    assert text(finding("needed"))[:4] == [
        "environment: /job (found by --target)",
        "",
        "core 1.0  /job  git 1a2b3c4d5",
        "  shadows /old/core",
    ]


def test_a_fix_with_two_targets_has_one_line_the_one_with_most_to_do() -> None:
    def shown(*findings: Finding) -> list[str]:
        return [line.rpartition("  ")[0].rpartition("  ")[2] for line in text(*findings, verbose=True)[4:]]

    assert shown(finding("applied", "core/a.py"), finding("needed", "core/b.py")) == ["core/b.py"]
    assert shown(finding("needed", "core/a.py"), finding("applied", "core/b.py")) == ["core/a.py"]
    accepted = finding("drifted", "core/a.py")._replace(accepted=True)
    assert shown(accepted, finding("needed", "core/b.py")) == ["core/b.py"], "an accepted one is settled"
    assert shown(finding("applied", "core/b.py"), accepted) == ["core/a.py"]
    gone = finding("not-affected", "core/a.py", data=None)
    assert shown(gone, finding("not-affected", "core/b.py")) == ["core/b.py"]


def test_help_is_shown_only_for_a_shape_that_nobody_has_verified() -> None:
    for verdict in "needed", "applied", "not-affected":
        assert "help" not in text(finding(verdict, hint="reinstall"))[-1]
    for verdict in "drifted", "unlisted":
        assert text(finding(verdict, hint="reinstall"))[-1].endswith("  help: reinstall")


def test_what_is_settled_is_a_number_unless_it_is_required_or_asked_for() -> None:
    found = finding("applied"), finding("needed")._replace(target=HANG._replace(fix=OTHER.id))
    (folded,) = (line for line in text(*found) if "settled" in line)
    assert folded == "  1 settled: 1 applied (-v shows each)"
    groups = ["hangs", "applied", "wrong", "needed"]
    assert [line.split()[0] for line in text(*found, verbose=True)[4:]] == groups
    required = Report(Search(HERE, (COPY,), ()), Request(required=(FIX.id,)), found, None, False)
    assert [line.split()[0] for line in report.text_report(required).splitlines()[4:]] == groups
    accepted = finding("drifted")._replace(accepted=True)
    assert "settled" in text(accepted)[-1]
    by_token = accepted._replace(verdict=accepted.verdict._replace(code="accepted"))
    assert text(by_token)[-1].split()[0] == "accepted", "not a drift that nobody has looked at"


def test_a_note_is_shown_whatever_the_verdict() -> None:
    for verdict in "needed", "applied", "fixed-upstream", "drifted":
        noted = finding(verdict)._replace(elsewhere=("job.py:1 WHY",))
        (line,) = text(noted)[4:]
        assert line.endswith("  note: job.py:1 WHY")
        assert report.result(noted)["notes"] == ["job.py:1 WHY"]
        what = Report(Search(HERE, (COPY,), ()), Request(), (noted,), None, False)
        place = f"file=/job/core/a.py,title=unhang {FIX.id} ({FIX.grade})"
        assert report.github_report(what).splitlines()[1:] == [f"::warning {place}::job.py:1 WHY"]
        shown = text(finding(verdict, "core/b.py"), noted)
        assert "note: " in shown[4], "of two targets with one verdict, the one with a note"


def test_what_revert_took_back_is_reverted_and_its_verdict_in_json_as_before() -> None:
    taken, kept = (
        finding("needed", hint="unhang apply"),
        finding("applied", "core/b.py")._replace(target=HANG._replace(fix=OTHER.id)),
    )
    changed = frozenset(found.seen.path for found in (taken, kept))
    back = frozenset((found.seen.path, found.target.fix) for found in (taken, kept))
    what = Report(Search(HERE, (COPY,), ()), Request(), (taken, kept), changed, False, taken_back=back)
    *_, row, settled, blank, counts = report.text_report(what).splitlines()
    assert row.split()[:3] == ["reverted", FIX.id, FIX.grade]
    assert (settled.strip(), blank) == ("1 settled: 1 applied (-v shows each)", "")
    assert counts.startswith("1 reverted, 1 applied (digest ")
    title = f"title=unhang {FIX.id} ({FIX.grade})"
    assert report.github_report(what).splitlines()[0] == f"::notice file=/job/core/a.py,{title}::reverted"
    results = json.loads(report.json_report(what))["results"]
    assert [(result["verdict"], result["changed"]) for result in results] == [("needed", True), ("applied", True)]


def test_an_interrupted_run_is_the_last_line() -> None:
    assert text(finding("needed"), interrupted=True)[-1].startswith("interrupted: a run did not get to its end")
    assert "interrupted" not in "".join(text(finding("needed")))


def test_the_text_of_an_error_names_its_path_once() -> None:
    error = UnhangError("io", "no space", path="/job/a.py", hint="free some")
    assert report.text_error(error) == "error[io]: no space\n  in: /job/a.py\n  hint: free some"
    assert report.text_error(UnhangError("io", "no space for /job/a.py", path="/job/a.py")).count("/job/a.py") == 1


def test_what_a_target_depends_on_is_in_the_digest() -> None:
    one, other = (
        finding("needed")._replace(target=HANG._replace(depends_on=HANG), depends=Observation("x", b"", sha256))
        for sha256 in ("1", "2")
    )
    assert len({report.digest([each]) for each in (finding("needed"), one, other)}) == 3


def test_the_path_does_not_change_the_digest(pristine: Path, site: Path) -> None:
    assert digest(site) == digest(pristine) == digest(source=site)


def test_the_prefix_and_an_editable_install_do_not_change_the_digest(pristine: Path, tmp_path: Path) -> None:
    copied, linked = (environments.make_env(tmp_path / name) for name in ("copied", "linked"))
    shutil.copytree(pristine / "verl", copied.site / "verl")
    shutil.copytree(pristine / "verl", tmp_path / "tree" / "verl")
    (linked.site / "tree.pth").write_text(f"{tmp_path / 'tree'}\n")
    expected = digest(pristine, upstreams=("verl",))
    assert digest(python=copied.python) == digest(python=linked.python) == expected
    for env in copied, linked:
        assert main(["apply", "--python", str(env.python)]) == 0
    patched = digest(python=copied.python)
    assert digest(python=linked.python) == patched != expected


@pytest.mark.parametrize(
    "change",
    [
        edit(lambda data: data + b"# a comment at the end\n"),
        edit(lambda data: data.replace(b"def forward_backward_batch(", b"def forward_backward_batch (")),
        edit(lambda data: data.replace(b"\n", b"\r\n")),
        edit(lambda data: b"def forward_backward_batch(:\n"),
        lambda site: (site / ENGINE).unlink(),
        lambda site: main(["apply", "--target", str(site), "--fix", "mtp-cp-deadlock"]),
        lambda site: main(["apply", "--target", str(site), "--fix", "empty-expert-hang"]),
        lambda site: shutil.rmtree(site / "megatron"),
    ],
)
def test_an_edited_patched_or_missing_file_changes_the_digest(
    pristine: Path, site: Path, change: Callable[[Path], object]
) -> None:
    change(site)
    assert digest(site) != digest(pristine)


def test_two_files_that_do_not_parse_have_different_digests(site: Path) -> None:
    found = set()
    for source in "def forward_backward_batch(:\n", "def forward_backward_batch(::\n":
        (site / ENGINE).write_text(source)
        found.add(digest(site))
    assert len(found) == 2


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.slow)])  # each digest reads all files
def test_one_unpatched_file_of_many_changes_the_digest(site: Path, step: int) -> None:
    before = {file: (site / file).read_bytes() for file in FILES if (site / file).exists()}
    assert main(["apply", "--target", str(site)]) == 0
    patched = digest(site)
    changed = [file for file, data in before.items() if (site / file).read_bytes() != data]
    assert len(changed) >= 6
    assert cli.called_with_all("check", "--target", site, "--expect-digest", patched).code == 0
    for file in changed[::step]:
        now = (site / file).read_bytes()
        (site / file).write_bytes(before[file])
        assert digest(site) != patched
        (site / file).write_bytes(now)
    assert digest(site) == patched


def test_releases_have_one_digest_exactly_if_their_target_files_are_equal(tmp_path: Path) -> None:
    known = {}
    for version in RELEASES:
        folder = cli.unpack_targets(tmp_path / version, ("megatron-core", version))
        data = [(folder / file).read_bytes() if (folder / file).exists() else None for file in FILES]
        upstreams = {found.upstream for found in survey(Request(target=str(folder))).search.installations}
        known[version] = ((data, upstreams), digest(folder))
        shutil.rmtree(folder)
    for one, other in itertools.combinations(RELEASES, 2):
        (code, found), (other_code, other_found) = known[one], known[other]
        assert (code == other_code) == (found == other_found), (one, other)
    assert len({found for _, found in known.values()}) > 4


def test_unexpected_code_fails_with_both_digests_in_every_format(pristine: Path) -> None:
    here, expected = digest(pristine), "0123456789abcdef"
    ran = cli.called_with_all("check", "--target", pristine, "--expect-digest", here)
    assert "unexpected code" not in ran.err
    check = ["check", "--target", str(pristine), "--expect-digest", expected]
    ran = cli.called_with_all(*check, "--require", "mtp-cp-deadlock")
    assert "required fix not in place: mtp-cp-deadlock is needed on verl 0.7.1" in ran.err
    assert (ran.code, ran.err.splitlines()[-1]) == (
        1,
        f"unexpected code: the code has digest {here}, not {expected} as expected: this node would not run what that "
        "one runs; do: install and patch all nodes alike",
    )
    ran = cli.called_with_all(*check, "--output-format", "json")
    assert (ran.code, ran.json["expected_digest"], ran.json["digest"]) == (1, expected, here)
    out = cli.called_with_all(*check, "--output-format", "github").out
    assert [expected in line for line in out.splitlines() if line.startswith("::error title=unhang digest::")] == [True]

"""The digest of the code in question: equal exactly where that code is equal, and ``check --expect-digest``."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import cli, environments
from unhang.shapes import catalog

CORE, VERL = ("megatron-core", "0.17.1"), ("verl", "0.7.1")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
FILES = sorted({target.file for fix in catalog.fixes().values() for target in fix.targets})
# Neighbours, some of which share all of their target files.
RELEASES = ["0.16.0", "0.16.1", "0.17.0", "0.17.1", "0.18.0", "0.19.0", "0.19.1", "0.19.2"]


def digest(*where: str | Path) -> str:
    found: str = cli.unhang("check", *where, "--output-format", "json").json["digest"]
    return found


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two releases in one folder that no test changes."""
    return cli.unpack(tmp_path_factory.mktemp("pristine") / "site", CORE, VERL)


@pytest.fixture
def site(pristine: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(pristine, tmp_path / "elsewhere" / "site"))


def edit(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def do(site: Path) -> None:
        (site / ENGINE).write_bytes(change((site / ENGINE).read_bytes()))

    return do


def test_another_path_is_the_same_code(pristine: Path, site: Path) -> None:
    assert digest("--target", site) == digest("--target", pristine) == digest("--source", site)


def test_another_prefix_and_an_editable_install_are_the_same_code(pristine: Path, tmp_path: Path) -> None:
    wheel, editable = (environments.make_env(tmp_path / name) for name in ("wheel", "editable"))
    shutil.copytree(pristine / "verl", wheel.site / "verl")
    tree = environments.project(tmp_path / "tree", "verl", "0.7.1")
    shutil.copytree(pristine / "verl", tree / "verl")
    editable.install(environments.build(tree, tmp_path / "dist", editable="lenient"))
    expected = digest("--target", pristine, "--upstream", "verl")
    assert digest("--python", wheel.python) == digest("--python", editable.python) == expected
    for python in wheel.python, editable.python:
        assert cli.unhang("apply", "--python", python).code == 0
    patched = digest("--python", wheel.python)
    assert digest("--python", editable.python) == patched != expected


@pytest.mark.parametrize(
    "change",
    [
        edit(lambda data: data + b"# a comment at the end\n"),
        edit(lambda data: data.replace(b"def forward_backward_batch(", b"def forward_backward_batch (")),
        edit(lambda data: data.replace(b"\n", b"\r\n")),
        edit(lambda data: b"def forward_backward_batch(:\n"),
        lambda site: (site / ENGINE).unlink(),
        lambda site: cli.unhang("apply", "--target", site, "--fix", "mtp-cp-deadlock"),
        lambda site: cli.unhang("apply", "--target", site, "--fix", "empty-expert-hang"),
        lambda site: shutil.rmtree(site / "megatron"),
    ],
)
def test_an_edited_patched_or_missing_file_is_other_code(
    pristine: Path, site: Path, change: Callable[[Path], None]
) -> None:
    change(site)
    assert digest("--target", site) != digest("--target", pristine)


def test_two_files_that_do_not_parse_are_not_the_same_code(site: Path) -> None:
    found = set()
    for text in "def forward_backward_batch(:\n", "def forward_backward_batch(::\n":
        (site / ENGINE).write_text(text)
        found.add(digest("--target", site))
    assert len(found) == 2


def test_one_unpatched_file_of_many_is_other_code(site: Path) -> None:
    before = {file: (site / file).read_bytes() for file in FILES if (site / file).exists()}
    assert cli.unhang("apply", "--target", site).code == 0
    patched = digest("--target", site)
    changed = [file for file, data in before.items() if (site / file).read_bytes() != data]
    assert len(changed) == 4
    for file in changed:
        now = (site / file).read_bytes()
        (site / file).write_bytes(before[file])
        assert digest("--target", site) != patched
        (site / file).write_bytes(now)
    assert digest("--target", site) == patched


def test_releases_have_one_digest_exactly_where_their_target_files_are_equal(tmp_path: Path) -> None:
    known = {}
    for version in RELEASES:
        folder = cli.unpack(tmp_path / version, ("megatron-core", version))
        code = tuple((folder / file).read_bytes() if (folder / file).exists() else None for file in FILES)
        upstreams = {
            item["upstream"]
            for item in cli.unhang("check", "--target", folder, "--output-format", "json").json["results"]
        }
        known[version] = ((code, sorted(upstreams)), digest("--target", folder))
        shutil.rmtree(folder)
    for one, other in itertools.combinations(RELEASES, 2):
        (code, found), (other_code, other_found) = known[one], known[other]
        assert (code == other_code) == (found == other_found), (one, other)
    assert len({found for _, found in known.values()}) > 4


def test_code_that_is_not_expected_fails_with_both_digests(site: Path) -> None:
    bare = digest("--target", site)
    assert cli.unhang("apply", "--target", site).code == 0
    patched = digest("--target", site)
    assert cli.unhang("check", "--target", site, "--expect-digest", patched).code == 0
    ran = cli.unhang("check", "--target", site, "--expect-digest", bare)
    assert (ran.code, ran.err.splitlines()[-1]) == (
        1,
        f"unexpected code: the code has digest {patched}, not {bare} as expected: this node would not run what that "
        "one runs; do: install and patch all nodes alike",
    )


def test_the_expectation_is_told_in_json_and_annotations(pristine: Path) -> None:
    check = ["check", "--target", str(pristine), "--expect-digest", "0123456789abcdef"]
    ran = cli.unhang(*check, "--output-format", "json")
    assert (ran.code, ran.json["expected_digest"]) == (1, "0123456789abcdef")
    assert ran.json["digest"] == digest("--target", pristine)
    ran = cli.unhang(*check, "--output-format", "github")
    (line,) = [line for line in ran.out.splitlines() if line.startswith("::error title=unhang digest::")]
    assert "0123456789abcdef" in line


def test_a_required_fix_and_an_unexpected_digest_are_both_named(pristine: Path) -> None:
    require = ["--fix", "mtp-cp-deadlock", "--require", "mtp-cp-deadlock", "--expect-digest", "0123456789abcdef"]
    ran = cli.unhang("check", "--target", pristine, *require)
    assert ran.code == 1
    assert "required fix not in place: mtp-cp-deadlock is needed on verl 0.7.1" in ran.err
    assert "unexpected code: the code has digest" in ran.err


@pytest.mark.parametrize(
    "word", ["", "0123456789abcde", "0123456789ABCDEF", "0123456789abcdefg", "error[no-upstream]:"]
)
def test_what_is_no_digest_is_wrong_usage(pristine: Path, word: str) -> None:
    ran = cli.unhang("check", "--target", pristine, "--expect-digest", word)
    assert (ran.code, "is not a digest" in ran.err, ran.out) == (2, True, "")

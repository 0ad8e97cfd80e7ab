"""What a command prints on a terminal: no line is wider, whatever stands there, but a path or a command to paste."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import cli
from unhang.tell import terminal

ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
WIDER = re.compile(r" *(?:--> )?(?:\S+|`?unhang .*|unhang revert .*)")
"""A path, or a command, on a line of its own."""


def drift(site: Path) -> None:
    """Add a statement, and a long one, change one and take one away."""
    source = site / ENGINE
    text = source.read_text()
    long = "note = 'a line that is much longer than what a terminal of sixty columns has'"
    begin = r"def forward_backward_batch\([^)]*\)[^\n]*:\n"
    text = re.sub(begin, rf"\g<0>        {long}\n        print('here')\n", text, count=1)
    source.write_text(text.replace("self.is_mp_src_rank_with_outputs():", "True:", 1))


def nothing(site: Path) -> None:
    """Leave it as it is."""


def apply(site: Path) -> None:
    """Bring all fixes into place."""
    assert cli.called_with_all("apply", "--target", site).code == 0


def upgrade_half(site: Path) -> None:
    """Install another release over a patched one, and leave half of the old one there."""
    apply(site)
    shutil.rmtree(site / "verl-0.7.1.dist-info")
    cli.unpack_targets(site, ("verl", "0.9.1"))


def mistype(site: Path) -> None:
    """Leave a file that does not parse."""
    (site / ENGINE).write_text("def forward_backward_batch(:\n")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    releases = ("verl", "0.7.1"), ("megatron-core", "0.17.1"), ("ms-swift", "4.6.0")
    return cli.unpack_targets(tmp_path_factory.mktemp("fresh") / "site", *releases)


@pytest.mark.slow
@pytest.mark.parametrize("prepare", [nothing, drift, apply, upgrade_half, mistype])
def test_no_line_is_wider_than_the_terminal(
    prepare: Callable[[Path], None], fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Path(shutil.copytree(fresh, tmp_path / "site"))
    prepare(site)
    seen = ""
    for width in 60, 80, 140:
        monkeypatch.setattr(terminal, "width", lambda _, width=width: width)
        for words in (
            ("check", "--require", "mtp-cp-deadlock"),
            ("check", "-v"),
            ("apply", "--dry-run", "--require", "mtp-cp-deadlock"),
        ):
            ran = cli.called_with_all(*words, "--target", site)
            assert ran.code in (0, 1), ran.err
            wide = [
                line for line in (ran.out + ran.err).splitlines() if len(line) > width and not WIDER.fullmatch(line)
            ]
            assert wide == []
            seen += ran.out
    assert "mtp-cp-deadlock" in seen, "a fix that is required has a row"
    assert ("a shape nobody" in seen) is (prepare is drift)
    assert ("does not parse" in seen) is (prepare is mistype)


def test_nor_where_nothing_can_be_written(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # made up, because root can write anywhere
    for width in 60, 80, 140:
        monkeypatch.setattr(terminal, "width", lambda _, width=width: width)
        ran = cli.called_with_all("apply", "--dry-run", "--target", fresh)
        assert (ran.code, "error[not-writable]" in ran.err, "unhang overlay" in ran.err) == (2, True, True)
        assert [line for line in ran.err.splitlines() if len(line) > width and not WIDER.match(line)] == []


def test_a_drift_is_shown_once_with_its_lines_and_the_next_command(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Path(shutil.copytree(fresh, tmp_path / "site"))
    drift(site)
    monkeypatch.setattr(terminal, "width", lambda _: 80)
    ran = cli.called_with_all("apply", "--dry-run", "--target", site, "--require", "mtp-cp-deadlock")
    block = ran.out.partition(f"--> {site}/{ENGINE}:")[2].partition("= help: ")[0].splitlines()
    assert ran.out.count(" --> ") == 1
    assert any(line.endswith(" | print('here')") for line in block)
    assert any(re.fullmatch(r" +\| \^+ added", line) for line in block)
    assert "closest known: verl 0.7.1, which needs the fix" in " ".join(block)
    assert ran.out.count("a shape nobody has verified") == 1
    assert "a shape nobody has verified" not in ran.err
    assert ran.err.splitlines()[-1].startswith(f"  unhang diff --target {site} --unknown")


def test_in_a_log_each_fix_is_one_line(fresh: Path, tmp_path: Path) -> None:
    site = Path(shutil.copytree(fresh, tmp_path / "site"))
    drift(site)
    rows = [line for line in cli.called_with_all("check", "--target", site).out.splitlines() if "mtp-cp" in line]
    assert [row.split()[:3] for row in rows] == [["drifted", "mtp-cp-deadlock", "cure"]]
    for what in "only with mtp.enable", f"{site}/{ENGINE}:", "a shape nobody has verified", "help: ":
        assert what in rows[0]


def test_a_row_names_the_release_that_has_upstreams_fix_or_says_that_none_has(fresh: Path) -> None:
    for options in (), ("-v",):
        told = cli.called_with_all("check", *options, "--target", fresh).out.splitlines()
        (right,) = (line for line in told if "mtp-cp" in line)
        (wrong,) = (line for line in told if "fsdp-size-one" in line)
        assert "; fixed in verl 0.8.0" in right
        assert "; no release yet" in wrong
    document = cli.called_with_all("check", "--output-format", "json", "--target", fresh).json
    found = {row["fix"]: row["fixed_in"] for row in document["results"]}
    assert (found["mtp-cp-deadlock"], found["fsdp-size-one-no-sync"]) == ("0.8.0", "")

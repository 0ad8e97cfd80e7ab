"""Hostile and odd input to whole commands is refused with a reason, or rewritten with every other byte kept."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import cli, runner

ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
RECORD = "verl-0.7.1.dist-info/RECORD"
CLASS = b"\nclass MegatronEngine(BaseEngine):"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cli.unpack(tmp_path_factory.mktemp("pristine") / "site", ("verl", "0.7.1"))


@pytest.fixture
def site(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "site"))


@pytest.fixture
def patched(site: Path) -> Path:
    cli.applied("--target", site)
    return site


@pytest.fixture(scope="module")
def rewritten(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The source with the fix in it."""
    site = Path(shutil.copytree(pristine, tmp_path_factory.mktemp("rewritten") / "site"))
    cli.applied("--target", site)
    return (site / ENGINE).read_bytes()


# Other encodings and line ends: rewritten, every other byte kept


def latin_1(data: bytes) -> bytes:
    """A real latin-1 file: an accented e in a comment, which is not UTF-8."""
    return b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + data.decode().encode("ascii", "backslashreplace")


def tabs(data: bytes) -> bytes:
    """A tab for each level, in the class alone: all strings there that span lines are docstrings."""
    head, line, body = data.partition(CLASS)
    levels = re.compile(rb"^(?:    )+", re.MULTILINE)
    return head + line + levels.sub(lambda match: b"\t" * (len(match[0]) // 4), body)


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "CR": lambda data: data.replace(b"\n", b"\r"),
    "CR and a coding line": lambda data: (b"#!/usr/bin/python\n# coding: utf-8\n" + data).replace(b"\n", b"\r"),
    "BOM": lambda data: b"\xef\xbb\xbf" + data,
    "BOM and CRLF": lambda data: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"),
    "no last newline": lambda data: data.rstrip(b"\n"),
    "latin-1": latin_1,
    "tabs": tabs,
    "form feeds and white space at line ends": lambda data: data.replace(CLASS, b" \t\n\x0c" + CLASS),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_text_in_another_form_keeps_every_other_byte(site: Path, rewritten: bytes, form: str) -> None:
    source = site / ENGINE
    source.write_bytes(FORMS[form](source.read_bytes()))
    before = cli.tree(site)
    cli.applied("--target", site)
    assert source.read_bytes() == FORMS[form](rewritten)
    assert cli.called("check", "--target", site).code == 0
    assert cli.called("revert", "--target", site).code == 0
    assert cli.tree(site) == before


# Receipts


Json = dict[str, Any]
Spoil = Callable[[Path, Json, Json], object]


def other_file(site: Path, receipt: Json, entry: Json) -> None:
    """An attempt to overwrite a file whose bytes are known, such as a hook or a .pth."""
    victim = site / "sitecustomize.py"
    victim.write_text("# known to all\n")
    digest = hashlib.sha256(victim.read_bytes()).hexdigest()
    entry.update(path=victim.name, patched=digest, record=None, record_row=None)


def file_outside(site: Path, receipt: Json, entry: Json) -> None:
    outside = site.parent / "outside"
    shutil.move(site / "verl", outside)
    (site / "verl").symlink_to(outside)


def through_a_link(site: Path, receipt: Json, entry: Json) -> None:
    (site / "alias").symlink_to(site / "verl")
    relative = ENGINE.replace("verl/", "alias/", 1)
    entry.update(path=relative, record_row=None)


def another_record(site: Path, receipt: Json, entry: Json) -> None:
    record = site.parent / "x-1.dist-info/RECORD"
    record.parent.mkdir()
    record.write_text(entry["record_row"] + "\n")
    (site / "x-1.dist-info").symlink_to(record.parent)
    entry.update(record="x-1.dist-info/RECORD")


def altered_blob(site: Path, receipt: Json, entry: Json) -> None:
    with open(site / ".unhang/pristine" / entry["pristine"], "ab") as blob:
        blob.write(b"import os; os.system('evil')\n")


def linked_blob(site: Path, receipt: Json, entry: Json) -> None:
    blob = site / ".unhang/pristine" / entry["pristine"]
    shutil.move(blob, site.parent / "blob")
    blob.symlink_to(site.parent / "blob")


RECEIPTS: dict[str, Spoil] = {
    "other file": other_file,
    "file outside": file_outside,
    "through a link": through_a_link,
    "another RECORD": another_record,
    "unknown fix": lambda site, receipt, entry: entry["fixes"][0].update(fix="no-such-fix"),
    "altered blob": altered_blob,
    "linked blob": linked_blob,
}


QUICK = ("through a link", "unknown fix", "altered blob")  # tests/store has the others, without whole runs


@pytest.mark.parametrize("how", [pytest.param(how, marks=() if how in QUICK else pytest.mark.slow) for how in RECEIPTS])
def test_a_receipt_that_was_tampered_with_is_refused(patched: Path, how: str) -> None:
    path = patched / ".unhang/receipt.json"
    receipt = json.loads(path.read_text())
    (entry,) = receipt["files"]
    RECEIPTS[how](patched, receipt, entry)
    path.write_text(json.dumps(receipt))
    before = cli.tree(patched.parent)
    for force in ([], ["--force"]):
        ran = cli.called("revert", "--target", patched, *force)
        assert ran.code == 2, ran.out + ran.err
        assert ran.err.startswith("error[bad-receipt]: ")
        assert "hint: " in ran.err
        assert cli.tree(patched.parent) == before
    for command in ("check", "apply", "diff"):
        ran = cli.called(command, "--target", patched)
        assert ran.code in (0, 2), "the code is patched, or the receipt is refused"
        assert "Traceback" not in ran.err
        assert cli.tree(patched.parent) == before


# Names, numbers and sizes


NAME = "a\n::error::forged ##[error]x\x1b[2J\r\u202e|`](x"


@pytest.mark.parametrize("patched", [False, True])
def test_no_name_and_no_receipt_acts_on_a_terminal_or_a_runner(tmp_path: Path, patched: bool) -> None:
    site = cli.unpack_targets(tmp_path / NAME, ("verl", "0.7.1"))
    if patched:
        cli.applied("--target", site)
        receipt = json.loads((site / ".unhang/receipt.json").read_text())
        (site / ".unhang/receipt.json").write_text(json.dumps({**receipt, "schema": 3, "unhang": NAME}))
    outputs = ("text", "json", "sarif", "github")
    runs = [cli.called("check", "--target", site, "--output-format", output) for output in outputs]
    runs += [cli.called(command, "--target", site) for command in ("diff", "apply", "revert")]
    runs += [cli.called("check", "--fix", NAME), cli.unhang(NAME), cli.unhang("diagnose", site / NAME)]
    for ran in runs:
        annotations = ("::error file=", "::warning title=unhang::", "::notice file=") if ran is runs[3] else ()
        found = runner.commands(ran.out) + runner.commands(ran.err)
        assert [line for line in found if not line.startswith(annotations or "no")] == []
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", ran.out + ran.err)
        assert "bug in unhang" not in ran.err
        assert "\u202e" not in (ran.out + ran.err).encode("latin-1").decode()
    assert runs[1].json["results"][0]["location"] == str(site), "a program gets the name as it is"


def sparse(path: Path) -> None:
    with open(path, "ab") as file:
        file.truncate(60 << 30)


def linked(path: Path) -> None:
    outside = path.parents[2] / "outside"
    outside.write_text("")
    path.unlink(missing_ok=True)
    os.link(outside, path)


def piped(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [sparse, linked, piped])
@pytest.mark.parametrize(
    ("name", "code"),
    [
        (".gitignore", ""),
        ("lock", "bad-state"),
        ("receipt.json", "bad-receipt"),
        ("journal.json", "bad-journal"),
        ("journal.done", "bad-journal"),
    ],
)
def test_a_file_of_the_state_that_unhang_did_not_make_is_named_at_once(
    tmp_path: Path, name: str, code: str, spoil: Callable[[Path], object]
) -> None:
    site = cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"))
    cli.applied("--target", site)
    spoil(site / ".unhang" / name)
    assert cli.unhang("check", "--target", site, timeout_s=60).code == name.startswith("journal"), "the rest is read"
    ran = cli.unhang("revert", "--target", site, timeout_s=60)
    is_fine = not code or (name, spoil) == ("lock", sparse)
    assert (ran.code, f"error[{code}]: " in ran.err) == ((0, False) if is_fine else (2, True)), ran.err
    outside = tmp_path / "outside"
    assert not outside.exists() or outside.read_text() == ""


@pytest.mark.parametrize(
    ("spoil", "codes"), [(sparse, [1, 2]), (piped, [1, 0]), (lambda path: (path.unlink(), path.mkdir()), [1, 2])]
)
def test_a_record_that_cannot_be_one_is_named(
    tmp_path: Path, spoil: Callable[[Path], object], codes: list[int]
) -> None:
    site = cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"))
    spoil(site / RECORD)
    runs = [cli.unhang(command, "--target", site, timeout_s=60) for command in ("check", "apply")]
    assert [ran.code for ran in runs] == codes
    assert ("error[unreadable]: " in runs[1].err) == (codes[1] == 2)

"""Hostile and odd input to whole commands is refused with a reason, or rewritten with every other byte kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import cli

VERL = ("verl", "0.7.1")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
RECORD = "verl-0.7.1.dist-info/RECORD"
CLASS = b"class MegatronEngine(BaseEngine):"
FUNCTION = "    def forward_backward_batch(self"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cli.unpack(tmp_path_factory.mktemp("pristine") / "site", VERL)


@pytest.fixture
def site(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "site"))


@pytest.fixture
def patched(site: Path) -> Path:
    assert cli.unhang("apply", "--target", site).code == 0
    return site


def added(before: bytes, after: bytes) -> list[bytes]:
    """Return the new lines; check that all others stayed, in their order."""
    import difflib

    old, new = before.splitlines(True), after.splitlines(True)
    changes = [op for op in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if op[0] != "equal"]
    assert sum(high - low for _, low, high, _, _ in changes) < 40, "more lines are gone than the rewrite replaces"
    return [line for _, _, _, low, high in changes for line in new[low:high]]


# Other encodings and line ends: rewritten, every other byte kept


def latin_1(data: bytes) -> bytes:
    """A real latin-1 file: an accented e in a comment, which is not UTF-8."""
    data = data.decode().encode("ascii", "backslashreplace")
    return b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + data


def tabs(data: bytes) -> bytes:
    """A tab for each level, in the class alone: all strings there that span lines are docstrings."""
    head, line, body = data.partition(b"\n" + CLASS)
    lines = []
    for text in body.split(b"\n"):
        bare = text.lstrip(b" ")
        depth, rest = divmod(len(text) - len(bare), 4)
        lines.append(b"\t" * depth + b" " * rest + bare)
    return head + line + b"\n".join(lines)


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "CR": lambda data: data.replace(b"\n", b"\r"),
    "CR and a coding line": lambda data: (b"#!/usr/bin/python\n# coding: utf-8\n" + data).replace(b"\n", b"\r"),
    "BOM": lambda data: b"\xef\xbb\xbf" + data,
    "BOM and CRLF": lambda data: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"),
    "no last newline": lambda data: data.rstrip(b"\n"),
    "latin-1": latin_1,
    "tabs": tabs,
    "form feeds": lambda data: data.replace(b"\n" + CLASS, b"\n\x0c\n" + CLASS),
    "white space at line ends": lambda data: data.replace(b":\n", b":  \n"),
    "under if TYPE_CHECKING's else": lambda data: data.replace(
        b"\n" + CLASS + data.partition(b"\n" + CLASS)[2],
        b"\nif TYPE_CHECKING:\n    pass\nelse:\n"
        + textwrap.indent((CLASS + data.partition(b"\n" + CLASS)[2]).decode(), "    ").encode(),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_text_in_another_form_keeps_every_other_byte(site: Path, form: str) -> None:
    source = site / ENGINE
    source.write_bytes(FORMS[form](source.read_bytes()))
    before, whole = source.read_bytes(), cli.tree(site)
    ran = cli.unhang("apply", "--target", site)
    assert (ran.code, "Traceback" in ran.err) == (0, False), ran.err
    after = source.read_bytes()
    plain = [data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") for data in (before, after)]
    assert b"# unhang mtp-cp-deadlock" in b"".join(added(*plain))
    for end in (b"\r\n", b"\r", b"\n"):
        assert (after.count(end) > 0) is (before.count(end) > 0), "the line ends are as before"
    assert after[:3] == before[:3]
    assert (after[-1:] in b"\r\n") is (before[-1:] in b"\r\n")
    if form == "latin-1":
        assert b"caf\xe9" in after
    compile(after, "x", "exec", dont_inherit=True)
    assert cli.unhang("check", "--target", site).code == 0
    assert cli.unhang("revert", "--target", site).code == 0
    assert cli.tree(site) == whole


# Functions in other places: refused, nothing changed


def refused(site: Path, code: str, *, command: str = "apply") -> dict[str, Any]:
    before = cli.tree(site)
    ran = cli.unhang(command, "--target", site, "--unverified", "--output-format", "json")
    (result,) = ran.json["results"]
    assert (ran.code, result["verdict"], result["code"]) == (1, "drifted", code), result
    assert result["detail"]
    assert result["hint"]
    assert cli.tree(site) == before
    found: dict[str, Any] = result
    return found


def twice(text: str) -> str:
    return text + f"\n\nclass MegatronEngine:\n{FUNCTION}):\n        pass\n"


def decorated(text: str) -> str:
    return text.replace(FUNCTION, "    @functools.cache\n" + FUNCTION, 1)


def nested(text: str) -> str:
    return text.replace(FUNCTION, "    def outer(self):\n        pass\n\n" + FUNCTION.replace("batch(", "batch2("), 1)


def both_arms(text: str) -> str:
    arms = f"\n\nif TYPE_CHECKING:\n    class MegatronEngine:\n    {FUNCTION}):\n            pass\n"
    return text + arms


@pytest.mark.parametrize(
    ("change", "code"),
    [(twice, "defined-twice"), (decorated, "unknown-shape"), (nested, "function-gone"), (both_arms, "defined-twice")],
)
def test_a_function_that_moved_or_changed_is_refused(site: Path, change: Callable[[str], str], code: str) -> None:
    source = site / ENGINE
    text = change(source.read_text())
    compile(text, "x", "exec", dont_inherit=True)
    source.write_text(text)
    if code == "unknown-shape":  # a decorator changes the function: only with --unverified
        ran = cli.unhang("check", "--target", site, "--output-format", "json")
        assert (ran.code, ran.json["results"][0]["code"]) == (1, code)
        assert cli.unhang("apply", "--target", site).code == 1
        assert source.read_text() == text
    else:
        refused(site, code)


# Files that are not modules


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(200 * 2**20)


def nul(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"import", b"imp\0ort", 1))


def not_utf_8(path: Path) -> None:
    path.write_bytes(b"# \xff\xfe\n" + path.read_bytes())


def not_utf_8_below(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\nimport", b"\n# \xff\xfe\nimport", 1))


@pytest.mark.parametrize("spoil", [not_utf_8, not_utf_8_below])
def test_a_comment_that_is_not_text_is_refused(site: Path, spoil: Callable[[Path], None]) -> None:
    """Python imports the file nevertheless: so it has the bug, and the rewrite is reported as blocked."""
    spoil(site / ENGINE)
    before = cli.tree(site)
    ran = cli.unhang("apply", "--target", site)
    assert (ran.code, "blocked: mtp-cp-deadlock" in ran.err) == (1, True), ran.err
    assert "not text in its own encoding" in ran.err
    assert cli.tree(site) == before


def unknown_coding(path: Path) -> None:
    path.write_bytes(b"# coding: no-such-coding\n" + path.read_bytes())


def deep(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x = " + b"(" * 5000 + b")" * 5000 + b"\n")


@pytest.mark.parametrize(
    ("spoil", "code"),
    [(sparse, "too-large"), (nul, "does-not-parse"), (unknown_coding, "does-not-parse"), (deep, "does-not-parse")],
)  # fmt: skip
def test_a_file_that_is_not_a_module_is_refused(site: Path, spoil: Callable[[Path], None], code: str) -> None:
    spoil(site / ENGINE)
    refused(site, code)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [a_pipe, endless, a_folder])
@pytest.mark.parametrize("command", ["check", "apply"])
def test_a_path_that_is_not_a_file_is_refused_at_once(site: Path, spoil: Callable[[Path], None], command: str) -> None:
    spoil(site / ENGINE)
    words = [sys.executable, "-m", "unhang", command, "--target", str(site)]
    limited = ["prlimit", "--as=2000000000", *words] if shutil.which("prlimit") else words
    done = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=20, cwd="/")
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert ENGINE in done.stdout + done.stderr


# Links that leave the installation


def test_a_folder_that_is_a_link_to_elsewhere_is_refused(site: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.move(site / "verl/workers", outside)
    (site / "verl/workers").symlink_to(outside)
    before = cli.tree(outside)
    assert str(outside) in refused(site, "outside")["detail"]
    assert cli.tree(outside) == before


def test_a_dangling_link_is_not_followed(site: Path, tmp_path: Path) -> None:
    (site / ENGINE).unlink()
    (site / ENGINE).symlink_to(tmp_path / "made-by-nobody.py")
    ran = cli.unhang("apply", "--target", site)
    assert ran.code == 1
    assert not (tmp_path / "made-by-nobody.py").exists()


# RECORD


def test_rows_of_files_elsewhere_stay(site: Path, tmp_path: Path) -> None:
    record = site / RECORD
    rows = b"../../outside.py,sha256=AAAA,3\n/etc/passwd,sha256=AAAA,3\n../" + ENGINE.encode() + b",sha256=AAAA,3\n"
    record.write_bytes(rows + record.read_bytes())
    (tmp_path / "outside.py").write_text("x = 1")
    before = cli.tree(tmp_path)
    assert cli.unhang("apply", "--target", site).code == 0
    assert record.read_bytes().startswith(rows)
    assert (tmp_path / "outside.py").read_text() == "x = 1"
    assert cli.unhang("revert", "--target", site).code == 0
    assert cli.tree(tmp_path) == before


def test_a_record_that_is_a_link_is_refused(site: Path, tmp_path: Path) -> None:
    shutil.move(site / RECORD, tmp_path / "RECORD")
    (site / RECORD).symlink_to(tmp_path / "RECORD")
    before = cli.tree(tmp_path)
    ran = cli.unhang("apply", "--target", site)
    assert ran.code == 2
    assert str(site / RECORD) in ran.err
    assert "hint: " in ran.err
    assert cli.tree(tmp_path) == before


# Receipts


Spoil = Callable[[Path, dict[str, Any], dict[str, Any]], None]


def other_file(site: Path, receipt: dict[str, Any], entry: dict[str, Any]) -> None:
    """An attempt to overwrite a file whose bytes are known, such as a hook or a .pth."""
    import hashlib

    victim = site / "sitecustomize.py"
    victim.write_text("# known to all\n")
    entry["relative"], entry["path"] = victim.name, str(victim)
    entry["patched"] = hashlib.sha256(victim.read_bytes()).hexdigest()
    entry["record"] = entry["record_row"] = None


def file_outside(site: Path, receipt: dict[str, Any], entry: dict[str, Any]) -> None:
    outside = site.parent / "outside" / ENGINE
    outside.parent.mkdir(parents=True)
    shutil.copy(site / ENGINE, outside)
    entry["root"], entry["path"] = str(site.parent / "outside"), str(outside)
    entry["record"] = entry["record_row"] = None


def dots(site: Path, receipt: dict[str, Any], entry: dict[str, Any]) -> None:
    entry["relative"] = "../site/" + ENGINE
    entry["path"] = f"{entry['root']}/../site/{ENGINE}"


def through_a_link(site: Path, receipt: dict[str, Any], entry: dict[str, Any]) -> None:
    (site / "alias").symlink_to(site / "verl")
    entry["relative"] = ENGINE.replace("verl/", "alias/", 1)
    entry["path"] = str(site / entry["relative"])
    entry["record_row"] = None


def another_record(site: Path, receipt: dict[str, Any], entry: dict[str, Any]) -> None:
    folder = site.parent / "x-1.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text("site/" + entry["record_row"] + "\n")
    entry["root"], entry["relative"] = str(site.parent), f"site/{ENGINE}"
    entry["record"], entry["record_row"] = str(folder / "RECORD"), "site/" + entry["record_row"]


def unknown_fix(site: Path, receipt: dict[str, Any], entry: dict[str, Any]) -> None:
    entry["fixes"][0]["fix"] = "no-such-fix"


def wrong_digest(site: Path, receipt: dict[str, Any], entry: dict[str, Any]) -> None:
    entry["pristine"] = "0" * 64


def altered_blob(site: Path, receipt: dict[str, Any], entry: dict[str, Any]) -> None:
    blob = site / ".unhang/pristine" / entry["pristine"]
    blob.write_bytes(blob.read_bytes() + b"import os; os.system('evil')\n")


def linked_blob(site: Path, receipt: dict[str, Any], entry: dict[str, Any]) -> None:
    blob = site / ".unhang/pristine" / entry["pristine"]
    shutil.move(blob, site.parent / "blob")
    blob.symlink_to(site.parent / "blob")


def no_object(site: Path, receipt: dict[str, Any], entry: dict[str, Any]) -> None:
    receipt["files"] = [["not", "an", "entry"]]


RECEIPTS: list[tuple[Spoil, str]] = [
    (other_file, "bad-receipt"), (file_outside, "bad-receipt"), (dots, "bad-receipt"),
    (through_a_link, "bad-receipt"), (another_record, "bad-receipt"), (unknown_fix, "bad-receipt"),
    (wrong_digest, "bad-receipt"), (altered_blob, "bad-receipt"), (linked_blob, "bad-receipt"),
    (no_object, "bad-receipt"), (lambda site, receipt, entry: receipt.update(schema=2), "newer-receipt"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "code"), RECEIPTS)
def test_a_receipt_that_was_tampered_with_is_refused(patched: Path, spoil: Spoil, code: str) -> None:
    path = patched / ".unhang/receipt.json"
    receipt = json.loads(path.read_text())
    (entry,) = receipt["files"]
    spoil(patched, receipt, entry)
    path.write_text(json.dumps(receipt))
    before = cli.tree(patched.parent)
    for force in ([], ["--force"]):
        ran = cli.unhang("revert", "--target", patched, *force)
        assert ran.code == 2, ran.out + ran.err
        assert ran.err.startswith(f"error[{code}]: ")
        assert "hint: " in ran.err
        assert cli.tree(patched.parent) == before
    for command in ("check", "apply", "diff"):
        ran = cli.unhang(command, "--target", patched)
        assert ran.code in (0, 2), "the code is patched, or the receipt is refused"
        assert "Traceback" not in ran.err
        assert cli.tree(patched.parent) == before


def test_a_receipt_that_is_a_link_is_refused(patched: Path, tmp_path: Path) -> None:
    shutil.move(patched / ".unhang/receipt.json", tmp_path / "receipt.json")
    (patched / ".unhang/receipt.json").symlink_to(tmp_path / "receipt.json")
    before = cli.tree(tmp_path)
    for command in ("revert", "apply", "check"):
        ran = cli.unhang(command, "--target", patched)
        assert (ran.code, ran.err.startswith("error[bad-receipt]: ")) == (2, True)
    assert cli.tree(tmp_path) == before


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_a_state_folder_that_is_a_link_is_refused(patched: Path, tmp_path: Path, command: str) -> None:
    if command == "apply":
        assert cli.unhang("revert", "--target", patched).code == 0
        (tmp_path / "elsewhere").mkdir()
    else:
        shutil.move(patched / ".unhang", tmp_path / "elsewhere")
    (patched / ".unhang").symlink_to(tmp_path / "elsewhere")
    before = cli.tree(tmp_path)
    ran = cli.unhang(command, "--target", patched)
    assert (ran.code, ran.err.startswith("error[bad-state]: ")) == (2, True), ran.err
    assert cli.tree(tmp_path) == before


# Disks


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A function that mounts a real file system of so many KiB."""
    mounted: list[Path] = []

    def make(room: int) -> Path:
        place = tmp_path / f"room-{room}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={room}k", "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("this machine allows no tmpfs mounts")
        mounted.append(place)
        return place

    yield make
    for place in mounted:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_changes_nothing(pristine: Path, small: Callable[[int], Path]) -> None:
    names = [ENGINE, RECORD, "verl/__init__.py", "verl/protocol.py", "verl/version/version"]
    need = sum(-(-(pristine / name).stat().st_size // 4096) * 4 for name in names)
    codes = []
    for spare in (0, 4, 8, 24, 60, 100, 140, 180, 240, 400):
        site = small(need + spare)
        for name in names:
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(pristine / name, site / name)
        before = cli.tree(site)
        ran = cli.unhang("apply", "--target", site)
        codes.append(ran.code)
        if ran.code == 0:
            continue
        assert ran.code == 2, ran.err
        assert ran.err.startswith("error[disk-full]: ")
        assert str(site) in ran.err
        assert "hint: make room" in ran.err
        assert cli.tree(site) == before
    assert codes == sorted(codes, reverse=True)
    assert set(codes) == {0, 2}

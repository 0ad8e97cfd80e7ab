"""The receipt stays exact, whatever happens to files and fixes in between, and a forged one is refused."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.receipts import FIRST, SECOND, A, B, C, entry
from unhang.errors import UnhangError
from unhang.store import receipt
from unhang.store.receipt import Receipt, sha256


def test_no_receipt(tmp_path: Path) -> None:
    assert receipt.load(str(tmp_path)) is None
    assert receipt.load(str(tmp_path / "nonexistent")) is None


def test_the_order_of_its_parts_does_not_matter() -> None:
    other = entry(relative="p/n.py")
    one = Receipt("1", (entry(A, B, FIRST, SECOND), other))
    two = Receipt("1", (other, entry(A, B, SECOND, FIRST)))
    assert receipt.render(one) == receipt.render(two)
    assert receipt.render(one).endswith(b"}\n")
    assert receipt.render(one) != receipt.render(one._replace(files=(other,)))


def test_another_fix_keeps_the_first_pristine_bytes_and_row_and_the_same_one_is_listed_once() -> None:
    newer = FIRST._replace(after="s2")
    merged = receipt.merge(None, [entry(A, B, FIRST, row="1")])
    for before, after, added, fixes in ((B, C, SECOND, (FIRST, SECOND)), (C, B, newer, (SECOND, newer))):
        merged = receipt.merge(merged, [entry(before, after, added, row="2")])
        assert merged.files == (entry(A, after, *fixes, row="1"),)


def test_a_file_with_other_bytes_gets_an_entry_of_its_own_and_the_earlier_one_stays() -> None:
    first = receipt.merge(None, [entry(A, B, FIRST)])
    anew = entry(b"another release\n", C, SECOND)
    both = receipt.merge(first, [anew])
    assert both.files == (anew, entry(A, B, FIRST))
    assert receipt.parse(receipt.render(both), "x", "/site") == both
    assert json.loads(receipt.render(both))["files"] == json.loads(receipt.render(receipt.merge(None, [anew])))["files"]
    on_top = entry(C, b"patched thrice\n", FIRST)
    joined = anew._replace(patched=on_top.patched, fixes=(SECOND, FIRST))
    assert receipt.merge(both, [on_top]).files == (joined, entry(A, B, FIRST))
    assert receipt.merge(both, [entry(A, B, FIRST)]).files == (entry(A, B, FIRST), anew), "the same once more"


def test_other_files_stay() -> None:
    other = entry(relative="p/a.py")
    merged = receipt.merge(receipt.merge(None, [other]), [entry()])
    assert merged.files == (other, entry())


ACCEPTED = FIRST._replace(
    before="0" * 16, after="1" * 16, verified=False, generation=2, date="2026-11-22", beside="2" * 16
)


@pytest.mark.parametrize("accepted", [ACCEPTED, ACCEPTED._replace(beside=None)])
def test_an_accepted_rewrite_has_its_generation_date_and_the_unknown_shape_beside_it(accepted: receipt.Fixed) -> None:
    merged = receipt.merge(None, [entry(A, B, accepted, SECOND)])
    data = receipt.render(merged)
    assert receipt.parse(data, "x", "/site") == merged
    assert data.count(b'"date"') == data.count(b'"generation"') == 1, "one that was listed has neither"
    assert (b'"beside"' in data) == (accepted.beside is not None)


def spoilt(change: Callable[[dict[str, Any]], Any]) -> bytes:
    content = json.loads(receipt.render(receipt.merge(None, [entry()])))
    changed = change(content)
    return json.dumps(content if changed is None else changed).encode()


def set_file(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["files"][0].update(values)


def test_keys_of_other_versions_are_ignored() -> None:
    assert receipt.parse(spoilt(lambda content: content.update(exclude={"newline": True})), "x", "/site").files == (
        entry(),
    )


def test_a_newer_receipt_asks_for_a_newer_unhang(tmp_path: Path) -> None:
    (tmp_path / "receipt.json").write_text(json.dumps({"schema": 2, "unhang": "9.9", "files": "whatever"}))
    with pytest.raises(UnhangError) as caught:
        receipt.load(str(tmp_path))
    assert caught.value.code == "newer-receipt"
    assert "9.9" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "change",
    [
        lambda content: [],  # `untrusted` refuses other files that are not JSON, and other odd paths and digests
        lambda content: content.pop("schema") and None,
        lambda content: content.update(schema=0),
        lambda content: content.update(schema=True),
        lambda content: content.pop("unhang") and None,
        lambda content: content.update(files={}),
        lambda content: content.update(files=["x"]),
        lambda content: content.update(files=content["files"] * 2),
        set_file(path="/etc/passwd"),
        set_file(path="../etc/passwd"),
        set_file(path="p//m.py"),
        set_file(upstream=None),
        set_file(version=7),
        set_file(pristine="abc"),
        set_file(patched=sha256(B).upper()),
        set_file(record="/etc/passwd"),
        set_file(record="../p-1.dist-info/RECORD"),
        set_file(record="p-1.dist-info/METADATA"),
        set_file(record="sub/p-1.dist-info/RECORD"),
        set_file(record="p/RECORD"),
        set_file(record_row=7),
        set_file(record_row="../../evil.py,,"),
        set_file(record_row="p/m.py,sha256=1,1\nother.py,,"),
        set_file(fixes=None),
        set_file(fixes=[]),
        set_file(fixes=[{**FIRST._asdict(), "verified": 1}]),
        set_file(fixes=[{"fix": "x"}]),
        *(
            set_file(fixes=[{**ACCEPTED._asdict(), **change}])
            for change in (
                {"date": 7},
                {"date": None},
                {"generation": None},
                {"date": "yesterday"},
                {"generation": "2"},
                {"before": "`id`"},
                {"after": "s1"},
                {"beside": "`id`"},
                {"beside": 7},
            )
        ),
    ],
)
def test_a_receipt_that_was_tampered_with_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    (tmp_path / "receipt.json").write_bytes(spoilt(change))
    with pytest.raises(UnhangError) as caught:
        receipt.load(str(tmp_path))
    assert (caught.value.code, caught.value.path) == ("bad-receipt", str(tmp_path / "receipt.json"))
    assert caught.value.hint


def test_a_receipt_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(receipt.render(receipt.merge(None, [entry()])))
    (tmp_path / "receipt.json").symlink_to(tmp_path / "real")
    with pytest.raises(UnhangError) as caught:
        receipt.load(str(tmp_path))
    assert caught.value.code == "bad-receipt"
    assert "move that folder elsewhere" in (caught.value.hint or "")


def test_the_links_that_were_replaced_are_kept_until_their_files_are_reinstalled() -> None:
    links = {"verl/x.py": "../x\udcff.py", "p-1.dist-info/RECORD": "/shared/RECORD"}
    first = entry(relative="verl/x.py")
    whole = receipt.merge(None, [first])._replace(links=links)
    assert receipt.parse(receipt.render(whole), "x", "/site").links == links
    assert receipt.merge(whole, [entry(B, C, SECOND, relative="verl/x.py"), entry(relative="verl/y.py")]).links == links
    assert receipt.merge(whole, [entry(C, B, relative="verl/x.py")]).links == {}


@pytest.mark.parametrize(
    "links", [[], {"../x": "y"}, {"x": ""}, {"x": 1}, {"x": "a\0b"}, {"x": "\ud800"}, {"x": "y" * 9999}]
)
def test_a_link_that_none_can_be_is_refused(links: object) -> None:
    data = json.dumps({"schema": receipt.SCHEMA, "unhang": "1", "files": [], "links": links}).encode()
    with pytest.raises(UnhangError) as caught:
        receipt.parse(data, "x", "/site")
    assert caught.value.code == "bad-receipt"


def test_its_paths_are_those_of_the_root_in_which_it_lies() -> None:
    data = receipt.render(receipt.merge(None, [entry()]))
    assert b"/site" not in data
    assert receipt.parse(data, "x", "/copy").files == (entry(root="/copy"),)


def test_the_folder_of_somebody_else_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / ".unhang"
    state.mkdir()
    (state / "receipt.json").write_bytes(receipt.render(receipt.merge(None, [entry()])))
    real = os.lstat, os.stat

    def owned(found: os.stat_result, owner: int) -> os.stat_result:
        return os.stat_result((*found[:4], owner, *found[5:]))

    for owner, above, user, is_read in ((7, 7, 9, True), (7, 8, 7, True), (0, 8, 9, True), (7, 8, 9, False)):
        owners = {str(state): owner, str(tmp_path): above}
        with monkeypatch.context() as patch:
            for name, look in zip(("lstat", "stat"), real):
                patch.setattr(os, name, lambda path, look=look, owners=owners, **options: (
                    owned(look(path, **options), owners.get(str(path), 0))
                ))  # fmt: skip
            patch.setattr(os, "geteuid", lambda user=user: user)
            if is_read:
                assert receipt.load(str(state)) is not None
                continue
            with pytest.raises(UnhangError) as caught:
                receipt.load(str(state))
        assert (caught.value.code, caught.value.path) == ("bad-state", str(state))

"""A plan is written whole: sources, RECORD rows and receipt. `tests/whole` does the same with real releases."""

import os
from pathlib import Path

import pytest

from unhang.errors import UnhangError
from unhang.records import Environment, Installation, Search
from unhang.rewrite.plan import FilePlan, Rewritten
from unhang.shapes.catalog import Target
from unhang.store import dist_info, state
from unhang.store.lock import exclusive
from unhang.store.receipt import Receipt, load, sha256
from unhang.store.write import record_changes, write

OLD, NEW = b"old\n", b"new bytes  # unhang gate: why\n"
RECORD = b"p/m.py,sha256=AAAA,4\r\np/other.py,,\r\np-1.dist-info/RECORD,,\r\n"


def lay_out(top: Path) -> tuple[Search, FilePlan]:
    """A wheel with one module, and the plan to rewrite that."""
    site = top / "site"
    (site / "p").mkdir(parents=True)
    (site / "p" / "m.py").write_bytes(OLD)
    (site / "p-1.dist-info").mkdir()
    (site / "p-1.dist-info" / "RECORD").write_bytes(RECORD)
    record = str(site / "p-1.dist-info" / "RECORD")
    installation = Installation("verl", "0.7.1", str(site), str(site), str(site / "p"), "wheel", record, ())
    search = Search(Environment(None, str(site), "--target"), (installation,), (), (str(site),))
    step = Rewritten(Target("fix-one", "verl", "p/m.py", "f"), "s0", "s1", True)
    return search, FilePlan(installation, str(site / "p" / "m.py"), OLD, NEW, (step,))


def run(search: Search, plan: FilePlan) -> Receipt:
    root = plan.installation.real_root
    with exclusive(state.folder(root)):
        write(search, root, [plan])
    receipt = load(state.folder(root))
    assert receipt is not None
    return receipt


def test_source_row_and_receipt_are_written_together(tmp_path: Path) -> None:
    search, plan = lay_out(tmp_path)
    receipt = run(search, plan)
    assert Path(plan.path).read_bytes() == NEW
    record = (tmp_path / "site/p-1.dist-info/RECORD").read_bytes()
    assert record == dist_info.update(RECORD, {"p/m.py": NEW}) != RECORD
    (entry,) = receipt.files
    assert (entry.path, entry.relative, entry.root) == (plan.path, "p/m.py", str(tmp_path / "site"))
    assert (entry.pristine, entry.patched, entry.record_row) == (sha256(OLD), sha256(NEW), "p/m.py,sha256=AAAA,4")
    assert record_changes([(entry, OLD, entry.record_row)])[0].after == RECORD
    (undone,) = record_changes([(entry, b"edited\n", None)])
    assert undone.after == dist_info.quoted(dist_info.update(record, {"p/m.py": b"edited\n"}), "p/m.py") != record


def test_a_file_that_changed_since_the_plan_stops_all(tmp_path: Path) -> None:
    search, plan = lay_out(tmp_path)
    Path(plan.path).write_bytes(b"edited")
    with pytest.raises(UnhangError) as caught:
        run(search, plan)
    assert caught.value.code == "changed-underneath"
    assert (tmp_path / "site/p-1.dist-info/RECORD").read_bytes() == RECORD
    assert not os.path.exists(tmp_path / "site/.unhang")


def test_a_package_that_is_a_link_has_its_root_where_it_leads(tmp_path: Path) -> None:
    search, plan = lay_out(tmp_path)
    (tmp_path / "checkout").mkdir()
    (tmp_path / "site/p").rename(tmp_path / "checkout/p")
    (tmp_path / "site/p").symlink_to(tmp_path / "checkout/p")
    installation = plan.installation._replace(
        kind="editable", record=None, real_root=str(tmp_path / "checkout"), package_dir=str(tmp_path / "checkout/p")
    )
    receipt = run(search, plan._replace(installation=installation, path=str(tmp_path / "checkout/p/m.py")))
    (entry,) = receipt.files
    assert (entry.root, entry.relative, entry.record) == (str(tmp_path / "checkout"), "p/m.py", None)


def test_a_record_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    search, plan = lay_out(tmp_path)
    receipt = run(search, plan)
    (tmp_path / "site/p-1.dist-info/RECORD").unlink()
    assert record_changes([(receipt.files[0], OLD, None)]) == []


def test_a_record_that_is_a_link_becomes_a_file(tmp_path: Path) -> None:
    search, plan = lay_out(tmp_path)
    link = tmp_path / "site/p-1.dist-info/RECORD"
    record = link.rename(tmp_path / "RECORD")
    link.symlink_to(record)
    receipt = run(search, plan)
    assert receipt.links == {"p-1.dist-info/RECORD": str(record)}
    assert (link.is_symlink(), link.read_bytes() != RECORD, record.read_bytes()) == (False, True, RECORD)


def test_a_record_that_is_a_link_to_no_file_is_refused(tmp_path: Path) -> None:
    search, plan = lay_out(tmp_path)
    record = tmp_path / "site/p-1.dist-info/RECORD"
    record.unlink()
    record.symlink_to("/dev/zero")
    with pytest.raises(UnhangError) as caught:
        run(search, plan)
    assert (caught.value.code, caught.value.path) == ("unreadable", str(record))
    assert Path(plan.path).read_bytes() == OLD


def test_a_record_in_a_folder_that_is_a_link_stays(tmp_path: Path) -> None:
    search, plan = lay_out(tmp_path)
    (tmp_path / "site/p-1.dist-info").rename(tmp_path / "p-1.dist-info")
    (tmp_path / "site/p-1.dist-info").symlink_to(tmp_path / "p-1.dist-info")
    (entry,) = run(search, plan).files
    assert (entry.record, (tmp_path / "p-1.dist-info/RECORD").read_bytes()) == (None, RECORD)

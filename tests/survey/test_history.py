"""What the receipt says about earlier runs, for judging and planning."""

from pathlib import Path

import pytest

from support.receipts import FIRST, SECOND, A, B, C, entry, save
from unhang.errors import UnhangError
from unhang.judge.decide import Past
from unhang.records import Token, paired
from unhang.rewrite.plan import Original
from unhang.shapes import catalog
from unhang.store.receipt import Entry, Fixed, Receipt, merge, sha256
from unhang.survey import history

TARGET = catalog.fix("mtp-cp-deadlock").targets[0]
KNOWN = Fixed(TARGET.fix, TARGET.file, TARGET.function, "s0", "s1", True)


def known(before: bytes = A, relative: str = "p/m.py") -> Entry:
    return entry(before, B, KNOWN, relative=relative)


def test_without_a_receipt_there_is_no_past() -> None:
    assert history.past([]) == {}
    assert history.originals([], ["/site/p/m.py"]) == {}


def test_the_past_of_each_function_is_found_by_file_and_fix() -> None:
    other = entry(B, C, FIRST, relative="p/n.py")
    assert history.past([merge(None, [entry(A, B, FIRST, SECOND)]), merge(None, [other])]) == {
        ("/site/p/m.py", "fix-one", "f"): [Past(sha256(B), "s1")],
        ("/site/p/m.py", "fix-two", "g"): [Past(sha256(B), "t1")],
        ("/site/p/n.py", "fix-one", "f"): [Past(sha256(C), "s1")],
    }
    accepted = FIRST._replace(verified=False, generation=2, date="2026-11-22")
    ((past,),) = history.past([merge(None, [entry(A, B, accepted)])]).values()
    assert past == Past(sha256(B), "s1", (Token("s0", 2, "s1"), "2026-11-22"))
    ((past,),) = history.past([merge(None, [entry(A, B, accepted._replace(beside="h"))])]).values()
    assert past == Past(sha256(B), "s1", (Token(paired("s0", "h"), 2, paired("s1", "h")), "2026-11-22"))


def test_only_the_named_files_are_read(tmp_path: Path) -> None:
    root = str(tmp_path)
    entries = [known(), known(C, "p/n.py"), entry(C, B, relative="p/o.py")]
    receipt = merge(None, [one._replace(root=root, path=f"{root}/{one.relative}", record=None) for one in entries])
    save(tmp_path / ".unhang", receipt, A, C)
    (tmp_path / ".unhang" / "pristine" / sha256(C)).unlink()
    (tmp_path / "p").mkdir()
    (tmp_path / "p/m.py").write_bytes(B)
    found = history.originals([receipt], {f"{root}/p/m.py", f"{root}/p/elsewhere.py"})
    assert found == {f"{root}/p/m.py": Original(sha256(B), A)}


@pytest.mark.parametrize(
    "fixed", [FIRST, KNOWN._replace(fix="no-such-fix"), KNOWN._replace(file="x.py"), KNOWN._replace(function="g")]
)
def test_an_unknown_fix_is_refused(fixed: Fixed) -> None:
    receipt = Receipt("9.9", (entry(A, B, fixed),))
    with pytest.raises(UnhangError, match="does not know") as caught:
        history.originals([receipt], ["/site/p/m.py"])
    assert (caught.value.code, caught.value.path) == ("bad-receipt", "/site/.unhang")

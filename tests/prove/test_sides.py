"""Where the untouched source of patched files comes from."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.asked import Asked, Results
from unhang.cli.main import main
from unhang.prove import host

FIX = ("--fix", "mtp-cp-deadlock")
FILE = "verl/workers/engine/megatron/transformer_impl.py"


def test_the_untouched_side_of_a_patched_copy_is_in_its_receipt(site: Path, asked: Asked, prove: Results) -> None:
    pristine = (site / FILE).read_bytes()
    assert main(["apply", "--target", str(site), *FIX]) == 0
    ours = (site / FILE).read_bytes()
    code, (line,) = prove(site, *FIX, "--cp", "2")
    assert (code, line["answer"], line["verdict"]) == (0, "proven", "applied")
    assert "receipt" in line["detail"]
    assert [asked.variants[0][side][FILE] for side in (host.UNTOUCHED, host.PATCHED)] == [pristine, ours]

    (site / FILE).write_bytes(ours + b"# mine\n")
    code, (line,) = prove(site, *FIX, "--cp", "2")
    assert (code, line["answer"]) == (0, "proven")
    assert asked.variants[1][host.UNTOUCHED][FILE] == pristine + b"# mine\n"

    (site / FILE).write_bytes(ours.replace(b"# unhang mtp", b"# my own unhang mtp"))
    code, (line,) = prove(site, *FIX, "--cp", "2")
    assert (code, line["answer"]) == (0, "patched-passes")
    assert "edited since" in line["detail"]

    shutil.rmtree(site / ".unhang")
    code, (line,) = prove(site, *FIX, "--cp", "2")
    assert (code, line["answer"], line["untouched"]) == (0, "patched-passes", None)
    assert "only the patched side is shown" in line["detail"]
    assert asked.variants[3].keys() == {host.PATCHED}

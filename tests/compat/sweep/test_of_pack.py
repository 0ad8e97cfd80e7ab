"""The data of a pack's proved fix: the example's, from the wheels of its upstream."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.checkout import REPOSITORY
from tried import trees
from tried.originals import Upstream
from unhang import packs
from unhang.compat.sweep import of_pack

PACK, FIX = REPOSITORY / "docs" / "packs" / "accelerate-fixes", "split-few-samples"


@pytest.fixture(autouse=True)
def _ours_after() -> Iterator[None]:
    yield
    packs.use([], True, {})


@pytest.mark.slow
def test_the_examples_data_is_what_its_end_state_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "accelerate-fixes"
    shutil.copytree(PACK, copy)
    wheels = [str(trees.wheel(Upstream("accelerate", version, "accelerate"))) for version in ("1.13.0", "1.14.0")]
    assert of_pack.main([str(copy), FIX, *wheels]) == 0, capsys.readouterr()
    found, listed = (json.loads((one / "compat" / "data" / f"{FIX}.json").read_text()) for one in (copy, PACK))
    assert found["codemod"] == listed["codemod"]
    assert found["releases"].items() <= listed["releases"].items()
    assert found["files"].items() <= listed["files"].items()
    for name, entry in found["shapes"].items():
        assert {**entry, "first": 0, "last": 0} == {"first": 0, **listed["shapes"][name], "last": 0} | {"first": 0}


def test_a_pack_without_the_fix_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert of_pack.main([str(PACK), "no-such-fix", "x.whl"]) == 2
    assert "error[unknown-fix]" in capsys.readouterr().err

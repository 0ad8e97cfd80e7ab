"""From a plan to the rewritten wheel on disk."""

import hashlib
import zipfile
from pathlib import Path

from support import wheels
from support.plans import plan_of
from support.wheel_files import ENGINE, VERL
from unhang.deliver import wheel, wheel_output
from unhang.deliver.wheel import Wheel
from unhang.deliver.wheel_output import WheelPlan
from unhang.shapes import catalog


def planned(path: Path, root: Path) -> tuple[Wheel, WheelPlan]:
    loaded = wheel.load(str(path))
    wheel.unpack(loaded, str(root))
    return loaded, wheel_output.wheel_plan(loaded, str(root), *plan_of(root, "mtp-cp-deadlock"))


def test_it_is_written_once_and_the_notice_names_the_original(tmp_path: Path) -> None:
    loaded, plan = planned(wheels.fetch(*VERL), tmp_path / "root")
    (finding,) = plan.findings
    assert finding.installation.root == loaded.file == "verl-0.7.1-py3-none-any.whl"
    assert (finding.verdict.verdict, finding.verdict.detail) == ("applied", "in the rewritten wheel")
    folder = tmp_path / "new" / "out"
    first = wheel_output.write(loaded, plan, str(folder))
    assert first is not None
    path = Path(first.path)
    assert (first.written, path.parent, [*folder.iterdir()]) == (True, folder, [path])
    assert first.version == f"0.7.1+unhang.{catalog.generation()}"
    assert first.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    with zipfile.ZipFile(path) as archive:
        assert list(plan.files) == [ENGINE]
        assert archive.read(ENGINE) == plan.files[ENGINE].after
        notice = archive.read(f"verl-{first.version}.dist-info/UNHANG-NOTICE.txt").decode()
    assert f"{ENGINE}: mtp-cp-deadlock\n" in notice
    assert loaded.sha256 in notice
    before = path.stat()
    assert wheel_output.write(loaded, plan, str(folder)) == first._replace(written=False)
    assert path.stat().st_ino == before.st_ino

import subprocess
import time
from pathlib import Path

import pytest

from support import cli
from support import made_images as make

VERL = make.release("verl", "0.7.1")
ONLY = ("--fix", "mtp-cp-deadlock")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return make.saved(tmp_path / "a.tar", [make.base(), make.tar(*VERL)])


def test_the_report_ends_with_the_line_of_the_dockerfile(image: Path) -> None:
    ran = cli.called("check", "--image", image, *ONLY, "--require", "mtp-cp-deadlock")
    assert ran.code == 1
    assert ran.out.splitlines()[0] == f"environment: {image} (found by --image)"
    options = "--python /opt/venv/bin/python --fix mtp-cp-deadlock --require mtp-cp-deadlock"
    assert ran.out.splitlines()[-1] == f"  RUN pip install --no-cache-dir unhang && unhang apply {options} 2>&1"
    assert "required fix not in place: mtp-cp-deadlock is needed on verl 0.7.1" in ran.err


def test_annotations_and_sarif_have_the_paths_of_the_image(image: Path) -> None:
    ran = cli.called("check", "--image", image, *ONLY, "--output-format", "github")
    assert f"::error file=/{make.ENGINE}," in ran.out
    ran = cli.called("check", "--image", image, *ONLY, "--output-format", "sarif")
    (result,) = ran.json["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == f"file:///{make.ENGINE}"
    assert place["region"]["startLine"] > 1


def test_the_digest_is_that_of_a_node(image: Path, tmp_path: Path) -> None:
    site = cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"))
    digest = cli.called("check", "--target", site, "--output-format", "json").json["digest"]
    ran = cli.called("check", "--image", image, "--expect-digest", digest)
    assert "unexpected code" not in ran.err
    ran = cli.called("check", "--image", image, "--expect-digest", "0" * 16)
    assert "unexpected code" in ran.err


def test_a_script_is_no_part_of_an_image(image: Path) -> None:
    ran = cli.called("check", "--image", image, "--script", "train.py")
    assert (ran.code, "error[bad-option]: --script does not go with --image" in ran.err) == (2, True)


def test_a_lock_file_is_another_question(image: Path) -> None:
    ran = cli.called("check", "--image", image, "--lock", "uv.lock")
    assert (ran.code, "error[bad-option]: --lock does not go with --image" in ran.err) == (2, True)


_WAITS = """
import time
from unhang.survey import in_image
in_image.opened = lambda *_: time.sleep(600)
"""


def test_nothing_is_left_even_of_a_run_that_is_killed(image: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    command = [cli.COMMAND[0], "-c", _WAITS + cli.COMMAND[2], "check", "--image", str(image)]
    with subprocess.Popen(command, env={**cli.environ(), "TMPDIR": str(work)}) as process:
        while not [*work.iterdir()]:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    while [*work.iterdir()]:
        time.sleep(0.02)


def test_nothing_is_left_of_a_run_that_fails(tmp_path: Path) -> None:
    work, image = tmp_path / "work", make.saved(tmp_path / "a.tar", [make.base(), b"none"])
    work.mkdir()
    ran = cli.unhang("check", "--image", image, env={"TMPDIR": str(work)})
    assert (ran.code, "error[bad-image]: a layer is no tar archive" in ran.err, [*work.iterdir()]) == (2, True, [])

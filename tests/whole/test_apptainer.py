"""docs/apptainer.md and its definition file, with Apptainer itself, on a base image that buildah makes."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from support import cli, images, wheels
from support.images import ENGINE, ORIGIN, SITE

PAGE = images.REPOSITORY / "docs" / "apptainer.md"
DEFINITION = images.REPOSITORY / "docs" / "apptainer" / "job.def"

if reason := images.trouble("buildah") or ("" if shutil.which("apptainer") else "apptainer not installed here"):
    pytest.skip(f"no SIF is built: {reason}", allow_module_level=True)


def apptainer(*words: str | Path) -> cli.Ran:
    done = subprocess.run(["apptainer", *words], capture_output=True, text=True, check=False, timeout=300)
    return cli.Ran(done.returncode, done.stdout, done.stderr)


def build(folder: Path, definition: Path) -> cli.Ran:
    """Build a SIF beside the Docker image's archive, from the definition file."""
    image = ["--build-arg", "from=docker-archive", "--build-arg", f"image={folder / 'base.tar'}"]
    return apptainer("build", *image, folder / f"{definition.stem}.sif", definition)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the base image, unpatched: as Docker's archive, and as a SIF."""
    folder = tmp_path_factory.mktemp("apptainer")
    with images.builder("buildah") as on:
        needs = images.download_needs(folder / "wheels")
        upstreams = [wheels.fetch("verl", "0.7.1"), wheels.fetch("megatron-core", "0.16.1")]
        images.make_base(on, needs, upstreams)
        assert isinstance(on, images.Buildah)
        pushed = on.run("push", images.BASE, f"docker-archive:{folder / 'base.tar'}:base:latest")
        assert pushed.returncode == 0, pushed.stdout
    built = apptainer("build", folder / "base.sif", f"docker-archive:{folder / 'base.tar'}")
    assert built.code == 0, built.err
    return folder


def test_the_definition_file_patches_and_leaves_no_unhang(folder: Path) -> None:
    built = build(folder, DEFINITION)
    assert built.code == 0, built.out + built.err
    script = f"cat {SITE}/{ENGINE}; ls {SITE}/.unhang; ls -d /opt/unhang || echo no unhang"
    seen = apptainer("exec", folder / "job.sif", "sh", "-c", script).out
    assert seen.startswith("# Copyright")
    assert "receipt.json" in seen
    assert seen.endswith("no unhang\n")
    before = wheels.read("verl", "0.7.1", ENGINE)
    assert before is not None
    assert before.decode() not in seen


def test_a_build_fails_where_a_required_fix_has_no_upstream(folder: Path, tmp_path: Path) -> None:
    text = DEFINITION.read_text()
    changed = tmp_path / "without.def"
    changed.write_text(text.replace("%post\n", f"%post\n    rm -r {SITE}/verl\n"))
    built = build(folder, changed)
    assert built.code != 0
    assert "required fix not in place: fused-head-no-gradient: there is no verl here" in built.out + built.err
    assert not (folder / "without.sif").exists()


def test_the_lines_of_the_page_lay_an_overlay_over_a_read_only_image(folder: Path, tmp_path: Path) -> None:
    def run(line: str) -> cli.Ran:
        words = [str(folder / "base.sif") if word == "job.sif" else word for word in shlex.split(line)]
        bind = words.index("--bind") + 1
        assert words[bind] == "/shared"
        words[bind] = f"{tmp_path}:/shared"
        return apptainer(*words[1:])

    found = re.findall(r"<!-- (?:overlay|job) -->\n```sh\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    install, write, check, train = "".join(found).replace("\\\n", "").splitlines()
    for line in install, write, check:
        ran = run(line)
        assert ran.code == 0, (line, ran.out, ran.err)
    assert run(check.replace("/shared/overlay:", "")).code == 1
    # the job itself: no GPU and no torch here
    job = train.replace("--nv ", "").replace("torchrun pretrain_gpt.py", shlex.join(["python3", "-c", ORIGIN]))
    assert " python3 -c " in job
    ran = run(job)
    assert ran.out.startswith("/shared/overlay/"), ran.out + ran.err
    assert (tmp_path / "overlay").is_dir()

"""The Dockerfiles and lines of docs/docker.md, built and run with buildah and Docker, and builds that must fail."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import unhang
from support import cli, images, local_index, pages, wheels
from support.images import ENGINE, ORIGIN, SITE, Builder
from unhang.tell.report import FEW

DOCS = images.REPOSITORY / "docs"
NOBODY = "65534:65534"
ONLY = ("--fix", "mtp-cp-deadlock")


@pytest.fixture(scope="module")
def needs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with unhang, as a wheel and as the archive of a commit, and the wheels that pip needs for it."""
    folder = images.download_needs(tmp_path_factory.mktemp("wheels"))
    images.make_archive(folder / "unhang-COMMIT.tar.gz")
    return folder


@pytest.fixture(scope="module", params=["buildah", "docker"])
def builder(request: pytest.FixtureRequest, needs: Path) -> Iterator[Builder]:
    if reason := images.trouble(request.param):
        pytest.skip(f"no image is built with {request.param}: {reason}")
    with images.builder(request.param) as on:
        upstreams = [wheels.fetch("verl", "0.7.1"), wheels.fetch("megatron-core", "0.16.1")]
        images.make_base(on, needs, upstreams)
        yield on


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = images.make_context(tmp_path_factory.mktemp("context"))
    tree = cli.unpack(folder / "Megatron-LM", ("megatron-core", "0.17.1"))
    shutil.rmtree(next(tree.glob("*.dist-info")))
    return folder


@pytest.fixture(scope="module")
def verl(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = DOCS / "docker" / "Dockerfile.verl"
    return images.must_build(builder, file, tmp_path_factory.mktemp("empty"), "verl", RUN_AS="1000:1000")


@pytest.fixture(scope="module")
def installed(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with the page's lines except the last."""
    folder = tmp_path_factory.mktemp("file")
    return "localhost/" + images.must_build(builder, write(folder, *step()[:-1]), folder, "installed")


@pytest.fixture(scope="module")
def alone(builder: Builder, context: Path) -> str:
    """The image of unhang alone, from a clone in which nox was run."""
    clone = context / "unhang"
    for name in ".nox/tests/log", "src/unhang/__pycache__/main.pyc":
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).touch()
    return images.must_build(builder, clone / "docs/docker/Dockerfile.unhang", clone, "unhang", BASE=images.BASE)


def write(folder: Path, *lines: str) -> Path:
    path = folder / "Dockerfile"
    path.write_text("\n".join(["ARG BASE", "FROM ${BASE}", *lines, ""]))
    return path


def example(name: str) -> str:
    """Return an example of the page, with each command on one line."""
    return pages.example(DOCS / "docker.md", name).replace("\\\n", "")


def step() -> list[str]:
    return example("step").splitlines()


def pinned(where: str) -> str:
    """Return the lines of the page that install unhang from somewhere."""
    (row,) = re.findall(rf"^\| {where} \| (.*) \|$", (DOCS / "docker.md").read_text(), flags=re.MULTILINE)
    return "\n".join(re.findall(r"`(.*?)`", row))


def of_unhang(name: str) -> tuple[str, ...]:
    """Return the command that an example gives to the image of unhang."""
    words = shlex.split(example(name))
    return tuple(words[words.index("unhang") + 1 :])


@pytest.mark.slow
def test_a_saved_image_has_the_answers_of_its_container(builder: Builder, installed: str, tmp_path: Path) -> None:
    images.must_build(builder, write(tmp_path, step()[-1]), tmp_path, "saved", BASE=installed)
    inside = builder.in_image("saved", "unhang", "check", "--output-format", "json")
    ran = cli.installed("check", "--image", builder.save("saved", tmp_path / "saved.tar"), "--output-format", "json")
    assert (ran.code, ran.json["digest"]) == (inside.code, inside.json["digest"])
    assert cli.verdicts(ran) == cli.verdicts(inside)
    assert {item["location"] for item in ran.json["results"]} == {SITE}


@pytest.mark.slow
def test_the_base_has_no_git_no_patch_and_needs_the_fix(builder: Builder) -> None:
    base = images.BASE.removeprefix("localhost/")
    for command in "git", "patch", "unhang":
        assert "1" in builder.in_image(base, "sh", "-c", f"command -v {command} || echo 1").out.split()
    source = builder.in_image(base, "cat", f"{SITE}/{ENGINE}").out
    assert ("def forward_backward_batch" in source, "unhang" in source) == (True, False)


def test_the_two_lines_of_the_page_cure_the_image(builder: Builder, installed: str, tmp_path: Path) -> None:
    images.must_build(builder, write(tmp_path, step()[-1]), tmp_path, "lines", BASE=installed)
    ran = builder.in_image("lines", "unhang", "check", "--output-format", "json")
    found = {item["fix"] for item in ran.json["results"] if item["verdict"] == "applied"}
    assert (ran.code, {"fused-head-no-gradient", "mtp-cp-deadlock", "expert-dp-warmup"} - found) == (0, set())
    # without HOME, PATH or any other variable
    assert builder.in_image("lines", "env", "-i", "/opt/venv/bin/unhang", "check", *ONLY, user=NOBODY).code == 0


def test_a_pinned_version_comes_from_an_index_and_patches(builder: Builder, needs: Path, tmp_path: Path) -> None:
    index = pinned("an index").replace("VERSION", unhang.__version__)
    assert unhang.__version__ in index
    with local_index.serve(needs) as address:
        settings = f"ENV PIP_NO_INDEX= PIP_FIND_LINKS= PIP_INDEX_URL={address}/simple/"
        file = write(tmp_path, settings, index, step()[-1])
        images.must_build(builder, file, tmp_path, "from-index", network=True)
    assert builder.in_image("from-index", "unhang", "check", *ONLY).code == 0


def test_a_pinned_commit_and_a_clone_install_without_git(builder: Builder, context: Path, tmp_path: Path) -> None:
    url, commit = "https://github.com/OWNER/unhang/archive/", pinned("a commit, without git in the image")
    assert url in commit
    lines = {"commit": commit.replace(url, "/wheels/unhang-"), "clone": pinned("a clone beside the Dockerfile")}
    for name, line in lines.items():
        images.must_build(builder, write(tmp_path, line), context, f"from-{name}")
        ran = builder.in_image(f"from-{name}", "unhang", "list")
        assert (ran.code, "mtp-cp-deadlock" in ran.out) == (0, True), ran.out


def test_the_lines_that_label_an_image_label_it(builder: Builder, installed: str, tmp_path: Path) -> None:
    if not isinstance(builder, images.Docker):
        pytest.skip("these lines are Docker's")
    images.must_build(builder, write(tmp_path, step()[-1]), tmp_path, "labelled", BASE=installed)

    def bash(name: str) -> str:
        script = example(name).replace("IMAGE", "localhost/labelled")
        done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    bash("labels")
    ran = builder.in_image("labelled", "unhang", "check", "--output-format", "json")
    assert bash("labelled") == ran.json["digest"]
    inspect = ["docker", "inspect", "--format", '{{index .Config.Labels "unhang.fixes"}}', "localhost/labelled"]
    applied = {item["fix"] for item in ran.json["results"] if item["verdict"] == "applied"}
    assert subprocess.run(inspect, capture_output=True, text=True, check=True).stdout.split() == sorted(applied)


def test_the_verl_image_is_patched_and_has_no_unhang_in_it(builder: Builder, verl: str, installed: str) -> None:
    receipt = json.loads(builder.in_image(verl, "cat", f"{SITE}/.unhang/receipt.json", user="1000:1000").out)
    assert ENGINE in json.dumps(receipt)
    missing = builder.in_image(verl, "sh", "-c", f"ls -d /tmp/unhang/* {SITE}/unhang {SITE}/libcst; unhang check")
    assert missing.out.count("No such file or directory") == 3, missing.out
    assert "not found" in missing.out


def test_the_verl_image_runs_as_its_own_user(builder: Builder, verl: str, tmp_path: Path) -> None:
    images.must_build(builder, write(tmp_path, "RUN id -u > /tmp/user"), tmp_path, "user", BASE=f"localhost/{verl}")
    assert builder.in_image("user", "cat", "/tmp/user").out.strip() == "1000"


def test_the_verl_image_can_be_checked_with_unhang_outside_the_environment(
    builder: Builder, verl: str, tmp_path: Path
) -> None:
    (kept,) = re.findall(r"`(COPY --from=unhang .*?)`", (DOCS / "docker.md").read_text())
    path = tmp_path / "Dockerfile"
    path.write_text((DOCS / "docker" / "Dockerfile.verl").read_text() + kept + "\n")
    images.must_build(builder, path, tmp_path, "kept")
    check = ("env", "PYTHONPATH=/opt/unhang", "python3", "-m", "unhang", "check", *ONLY)
    ran = builder.in_image("kept", *check, user="1000:1000")
    assert (ran.code, "nothing left to do" in ran.out) == (0, True), ran.out


def test_the_image_can_be_reverted(builder: Builder, installed: str, tmp_path: Path) -> None:
    images.must_build(builder, write(tmp_path, step()[-1]), tmp_path, "reverted", BASE=installed)
    # one stream: buildah reads two separately, and mixes them
    script = f"exec 2>&1; unhang revert >/dev/null && ls -d {SITE}/.unhang; cat {SITE}/{ENGINE}"
    ran = builder.in_image("reverted", "sh", "-c", script)
    original = wheels.read("verl", "0.7.1", ENGINE)
    assert original is not None
    assert original.decode() in ran.out
    assert f"ls: cannot access '{SITE}/.unhang'" in ran.out


def test_the_megatron_image_has_its_checkout_patched(builder: Builder, context: Path) -> None:
    file = DOCS / "docker" / "Dockerfile.megatron"
    images.must_build(builder, file, context, "megatron", RUN_AS="1000:1000")
    ran = builder.in_image("megatron", "ls", "-ln", "/opt/Megatron-LM/.unhang/receipt.json")
    assert "1000 1000" in " ".join(ran.out.split())
    ran = builder.in_image("megatron", "cat", "/opt/Megatron-LM/.unhang/receipt.json")
    assert {"sft-packed-seq-broadcast", "expert-dp-warmup"} <= set(re.findall(r'"([a-z-]+)"', ran.out))


def test_the_image_of_unhang_has_no_more_than_unhang(builder: Builder, alone: str, context: Path) -> None:
    ran = builder.in_image(alone, "unhang", "list", user=NOBODY)
    assert (ran.code, "mtp-cp-deadlock" in ran.out) == (0, True)
    assert "No such file" in builder.in_image(alone, "ls", "/src").out


def test_what_git_ignores_stays_out_of_the_build(builder: Builder, context: Path, alone: str, tmp_path: Path) -> None:
    images.must_build(builder, write(tmp_path, "COPY . /src"), context / "unhang", "context")
    seen = builder.in_image("context", "ls", "-A", "/src", "/src/src/unhang").out.split()
    assert {
        "pyproject.toml",
        "setup.py",
        "README.md",
        "LICENSE",
        "src",
        "codemods",
        "compat",
        "patches",
        "upstreams",
    } <= set(seen)
    assert not {".nox", ".git", "tests", "docs", "__pycache__"} & set(seen)


def test_the_image_of_unhang_patches_a_mounted_checkout(builder: Builder, alone: str, tmp_path: Path) -> None:
    tree = cli.unpack(tmp_path / "Megatron-LM", ("megatron-core", "0.17.1"))
    for path in [tmp_path, tree, *tree.rglob("*")]:
        os.chown(path, 1000, 1000)
    ran = builder.in_image(alone, *of_unhang("source"), user="1000:1000", mounts={tree: "/code"})
    assert ran.code == 0, ran.out
    ran = cli.installed("check", "--source", tree, "--fix", "sft-packed-seq-broadcast", "--output-format", "json")
    assert "applied" in {item["verdict"] for item in ran.json["results"]}
    assert {path.stat().st_uid for path in tree.rglob("*")} == {1000}


def test_the_image_of_unhang_writes_an_overlay_for_an_image_that_it_only_reads(
    builder: Builder, alone: str, tmp_path: Path
) -> None:
    site = cli.unpack(tmp_path / "site", ("verl", "0.7.1"), ("megatron-core", "0.16.1"))
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, 1000, 1000)
    mounts = {site: "/job:ro", shared: "/shared"}
    ran = builder.in_image(alone, *of_unhang("overlay"), user="1000:1000", mounts=mounts)
    assert ran.code == 0, ran.out
    base = images.BASE.removeprefix("localhost/")
    for path, origin in ("", f"{SITE}/{ENGINE}"), ("/shared/overlay", "/shared/overlay"):
        command = ("env", f"PYTHONPATH={path}", "python3", "-c", ORIGIN)
        ran = builder.in_image(base, *command, user=NOBODY, mounts={shared: "/shared:ro"})
        assert ran.out.startswith(origin), ran.out


def test_a_drifted_file_fails_the_build_with_the_reason_as_the_last_line(
    builder: Builder, installed: str, tmp_path: Path
) -> None:
    # one more argument makes it an unknown shape
    file = f"{SITE}/verl/utils/experimental/torch_functional.py"
    edit = f"RUN sed -i 's/def backward(ctx,/def backward(ctx, more,/' {file}"
    built = builder.build(write(tmp_path, edit, step()[-1]), tmp_path, "drifted", BASE=installed)
    assert built.code != 0
    expected = f"required fix not in place: fused-head-no-gradient is drifted on verl 0.7.1 in {SITE}: "
    assert built.lines[-1].startswith(expected), built.lines[-6:]
    assert "; do: " in built.lines[-1]


def test_a_missing_upstream_fails_the_build_by_name(builder: Builder, installed: str, tmp_path: Path) -> None:
    lines = [f"RUN rm -r {SITE}/verl", step()[-1]]
    built = builder.build(write(tmp_path, *lines), tmp_path, "missing", BASE=installed)
    assert built.code != 0
    expected = "required fix not in place: fused-head-no-gradient: there is no verl here"
    assert built.lines[-1].startswith(expected), built.lines


def test_files_that_another_user_may_not_write_are_listed(builder: Builder, installed: str, tmp_path: Path) -> None:
    built = builder.build(write(tmp_path, "USER 1000:1000", step()[-1]), tmp_path, "denied", BASE=installed)
    assert built.code != 0
    assert len([line for line in built.lines if line.startswith(f"not writable here: {SITE}/")]) == FEW, built.lines
    assert any(line.startswith(f"error[not-writable]: cannot write {SITE}/.unhang") for line in built.lines)


def test_another_user_can_patch_its_own_files(builder: Builder, installed: str, tmp_path: Path) -> None:
    lines = ["RUN chown -R 1000:1000 /opt/venv", "USER 1000:1000", step()[-1]]
    images.must_build(builder, write(tmp_path, *lines), tmp_path, "own", BASE=installed)
    assert builder.in_image("own", "unhang", "check", *ONLY, user="1000:1000").code == 0

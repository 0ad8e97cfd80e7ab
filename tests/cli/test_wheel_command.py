"""`unhang wheel`: what installers, unhang and a reader of the archive find in its wheels, and what it reports."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from installer.sources import WheelFile

from support import cli, environments, wheels
from support.checkout import REPOSITORY
from support.wheel_files import ENGINE, VERL, demo, edited_verl, find_links, in_data
from unhang.cli.main import main
from unhang.shapes import catalog
from unhang.tell import progress

CORE, SWIFT = ("megatron-core", "0.17.1"), ("ms-swift", "4.6.0")
CHANGED = {
    CORE: {"megatron/core/parallel_state.py", "megatron/core/transformer/moe/experts.py", "megatron/training/utils.py"},
    VERL: {ENGINE},
    SWIFT: {"swift/megatron/utils/megatron_lm_utils.py"},
}
OURS = f"+unhang.{catalog.generation()}"
Patched = Callable[[tuple[str, str]], Path]


def make(out: Path, *arguments: str | os.PathLike[str], tmp: Path | None = None) -> cli.Ran:
    if tmp is None:
        return cli.called("wheel", *arguments, "-o", out)
    return cli.unhang("wheel", *arguments, "-o", out, env={"TMPDIR": str(tmp)})


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Patched:
    """Gives the rewritten wheel of a pinned release, made once."""
    made: dict[tuple[str, str], Path] = {}

    def of(release: tuple[str, str]) -> Path:
        if release not in made:
            folder = tmp_path_factory.mktemp("patched")
            ran = make(folder, wheels.fetch(*release))
            assert ran.code == 0, ran.err
            (made[release],) = folder.glob("*.whl")
        return made[release]

    return of


def plain(name: str) -> str:
    return name.replace(f"{OURS}.dist-info/", ".dist-info/")


# ---- what is in the wheels


@pytest.mark.parametrize("release", CHANGED, ids=" ".join)
def test_every_other_byte_is_unchanged_and_record_is_valid(release: tuple[str, str], patched: Patched) -> None:
    source, path = wheels.fetch(*release), patched(release)
    assert path.name == source.name.replace(f"-{release[1]}-", f"-{release[1]}{OURS}-")
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(path) as after:
        assert after.testzip() is None
        names = [plain(name) for name in after.namelist()]
        added, names[-3:-1] = names[-3:-1], []
        assert [name.partition(".dist-info/")[2] for name in added] == ["UNHANG-NOTICE.txt", "sboms/unhang.cdx.json"]
        assert names == before.namelist()
        for old, new in zip(before.infolist(), [it for it in after.infolist() if plain(it.filename) not in added]):
            for name in "date_time external_attr internal_attr create_system extra comment".split():
                assert getattr(old, name) == getattr(new, name)
            changed = old.filename in CHANGED[release] or old.filename.endswith(("/METADATA", "/RECORD"))
            assert (before.read(old) == after.read(new)) != changed
            assert changed or (old.CRC, old.compress_type, old.compress_size) == (
                new.CRC, new.compress_type, new.compress_size,
            )  # fmt: skip
        (metadata,) = [name for name in after.namelist() if name.endswith("/METADATA")]
        now = after.read(metadata).replace(
            f"\nVersion: {release[1]}{OURS}".encode(), f"\nVersion: {release[1]}".encode()
        )
        assert now == before.read(plain(metadata))
    with WheelFile.open(path) as opened:
        opened.validate_record()


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes_and_these_need_nothing(patched: Patched, tmp_path: Path) -> None:
    assert make(tmp_path, wheels.fetch(*VERL)).code == 0
    (again,) = tmp_path.iterdir()
    assert again.read_bytes() == patched(VERL).read_bytes()
    inode = again.stat().st_ino
    assert "there already" in make(tmp_path, wheels.fetch(*VERL)).out
    assert again.stat().st_ino == inode
    ran = make(tmp_path, again)
    assert (ran.code, "not written: it needs nothing" in ran.out) == (0, True)


@pytest.mark.slow
def test_a_run_that_takes_long_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["wheel", str(wheels.fetch(*VERL)), "-o", str(tmp_path)]
    for quiet in (), ("-q",):
        monkeypatch.setattr(progress, "FIRST_S", 0.0)
        monkeypatch.setattr(progress, "_LOG_S", 0.001)
        assert main([*words, *quiet]) == 0
        err = capsys.readouterr().err
        assert ("planning verl-0.7.1-py3-none-any.whl\n" in err) is (not quiet)
        install = err.splitlines()[-1:]  # the end of it can be pasted
        assert bool(install) is (not quiet)
        for line in install:
            program, verb, path = line.split()
            assert (program, verb, path.endswith(f"verl-0.7.1{OURS}-py3-none-any.whl")) == ("pip", "install", True)
            assert (Path.cwd() / path).is_file()


# ---- installed


def install(how: str, path: Path, env: environments.Env) -> None:
    if how == "pip":
        env.install(path)
    elif how == "uv":
        words = ["pip", "install", "--offline", "--no-deps", "--quiet", "--python", str(env.python)]
        environments.run(environments.uv(), *words, str(path), cwd=env.prefix)
    else:
        words = ["-m", "installer", "--no-compile-bytecode", "--prefix", str(env.prefix), "--validate-record", "all"]
        environments.run(sys.executable, *words, str(path), cwd=env.prefix)


@pytest.mark.parametrize(
    "how", ["pip", *(pytest.param(name, marks=pytest.mark.slow) for name in ("uv", "installer"))]
)  # fmt: skip
def test_installed_it_is_applied_and_revert_gives_the_command(how: str, patched: Patched, tmp_path: Path) -> None:
    env = environments.make_env(tmp_path / "env")
    install(how, patched(VERL), env)
    check = cli.called("check", "--python", env.python, "--output-format", "json")
    assert check.code == 0, check.out
    (result,) = check.json["results"]
    assert (result["verdict"], result["version"], result["detail"]) == ("applied", "0.7.1", "")
    version = env.run("-c", "from importlib.metadata import version; print(version('verl'))")
    assert version.strip() == f"0.7.1{OURS}"
    (line,) = re.findall(r'python -c "(.*sboms.*)"', (REPOSITORY / "docs" / "wheel.md").read_text())
    assert json.loads(env.run("-c", line))["metadata"]["component"]["version"] == f"0.7.1{OURS}"
    ran = cli.called("revert", "--python", env.python)
    assert ran.code == 1
    assert f"verl 0.7.1{OURS} was installed from a wheel with the fixes in it" in ran.err
    forced = f"pip --python {env.python} install --force-reinstall --no-deps verl==0.7.1\n"
    if how == "uv":
        forced = f"uv pip install --python {env.python} --no-deps --reinstall-package verl verl==0.7.1\n"
    assert f"install the plain release: {forced}" in ran.err
    cli.applied("--python", env.python)
    assert not (env.site / ".unhang").exists()
    pip = [environments.pip_python(), "-m", "pip", "--python", str(env.python), "uninstall", "-q", "-y", "verl"]
    environments.run(*pip, cwd=tmp_path)
    assert not [path for path in env.site.glob("verl*/**/*") if path.is_file()]


@pytest.mark.slow
def test_pip_prefers_it_to_the_plain_wheel_of_the_version(patched: Patched, tmp_path: Path) -> None:
    index = find_links(tmp_path / "index", VERL)
    env = environments.make_env(tmp_path / "env")
    words = [environments.pip_python(), "-m", "pip", "--python", str(env.python), "install", "-q", "--no-deps"]
    environments.run(*words, *index, "--find-links", str(patched(VERL).parent), "verl==0.7.1", cwd=tmp_path)
    assert (env.site / f"verl-0.7.1{OURS}.dist-info").is_dir()


# ---- what it reports


def test_each_wheel_has_a_line_that_says_whether_it_was_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = make(out, *(wheels.fetch(*release) for release in (CORE, VERL, ("verl", "0.9.1"))))
    assert ran.code == 0, ran.err
    assert "verl-0.9.1-py3-none-any.whl" in ran.out
    assert "not written: it needs nothing" in ran.out
    names = sorted(path.name for path in out.iterdir())
    assert [name.split("-")[:2] for name in names] == [["megatron_core", f"0.17.1{OURS}"], ["verl", f"0.7.1{OURS}"]]
    for name in names:
        assert f"written: {out / name}" in ran.out


@pytest.mark.slow
def test_a_kind_narrows_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = make(out, wheels.fetch(*CORE), wheels.fetch(*VERL), "--kind", "wrong-values", "--output-format", "json")
    core, verl = ran.json["wheels"]
    assert (ran.code, verl["output"], len([*out.iterdir()])) == (0, None, 1)
    found = [(row["fix"], row["verdict"], row["kinds"], row["changes_numbers"]) for row in core["results"]]
    kinds = ["hang", "abort", "wrong-values"]
    assert ("sft-packed-seq-broadcast", "applied", kinds, True) in found
    assert {fix for fix, *_ in found} == {"sft-packed-seq-broadcast"}


@pytest.mark.slow
def test_the_json_has_each_wheel_and_its_result(tmp_path: Path) -> None:
    index = find_links(tmp_path / "index", CORE, ("verl", "0.9.1"))
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("verl==0.9.1\n")
    local = wheels.fetch(*VERL)
    options = ["-r", str(requirements), *index, "--python-version", "3.12", "--output-format", "json"]
    ran = make(tmp_path / "out", local, "megatron-core==0.17.1", *options)
    assert ran.code == 0, ran.err
    entries = ran.json["wheels"]
    assert [item["requirement"] for item in entries] == [str(local), "megatron-core==0.17.1", f"-r {requirements}"]
    assert [(item["project"], item["version"]) for item in entries] == [VERL, CORE, ("verl", "0.9.1")]
    assert [item["output"] is None for item in entries] == [False, False, True]
    for item in entries:
        source = wheels.fetch(item["project"], item["version"])
        assert item["input"] == {"file": source.name, "sha256": hashlib.sha256(source.read_bytes()).hexdigest()}
        if item["output"]:
            path = Path(item["output"]["path"])
            assert item["output"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
            assert item["output"]["version"] == f"{item['version']}{OURS}" == path.name.split("-")[1]
            assert item["output"]["written"] is True
        assert {row["location"] for row in item["results"]} == {source.name}
    assert entries[2]["notes"] == ["not written: it needs nothing"]
    assert {row["fix"] for row in entries[1]["results"] if row["verdict"] == "applied"} == {
        "empty-expert-hang", "expert-dp-warmup", "sft-packed-seq-broadcast",
    }  # fmt: skip


@pytest.mark.slow
def test_the_digest_is_that_of_the_same_code_installed(tmp_path: Path) -> None:
    site = cli.unpack(tmp_path / "site", CORE, VERL)
    cli.applied("--target", site)
    check = cli.called("check", "--target", site, "--output-format", "json")
    for written in True, False:
        ran = make(tmp_path / "out", wheels.fetch(*CORE), wheels.fetch(*VERL), "--output-format", "json")
        assert [item["output"]["written"] for item in ran.json["wheels"]] == [written] * 2
        assert ran.json["digest"] == check.json["digest"]


@pytest.mark.slow
def test_a_note_on_the_download_is_in_the_json_and_on_stderr(tmp_path: Path) -> None:
    other = "3.12" if sys.version_info[:2] != (3, 12) else "3.10"
    tag = f"cp{other.replace('.', '')}"
    (tmp_path / "index").mkdir()
    shutil.copy(wheels.fetch(*VERL), tmp_path / "index" / f"verl-0.7.1-{tag}-none-any.whl")
    options = ["verl==0.7.1", "--no-index", "--find-links", str(tmp_path / "index"), "--output-format", "json"]
    ran = make(tmp_path / "out", *options)
    here = ".".join(map(str, sys.version_info[:2]))
    note = f"verl==0.7.1 has no wheel for Python {here}; this is its wheel for Python {other}"
    assert ran.json["wheels"][0]["notes"] == [note]
    assert f"note: {note}" in ran.err.splitlines()


def test_a_blocked_required_fix_exits_1_with_the_reason_last(tmp_path: Path) -> None:
    words = ["--require", "mtp-cp-deadlock", "--require", "expert-dp-warmup", "--output-format", "json"]
    ran = make(tmp_path / "out", edited_verl(tmp_path / "in"), wheels.fetch(*CORE), *words)
    assert ran.code == 1
    entry = ran.json["wheels"][0]
    assert (entry["output"], entry["notes"]) == (None, ["not written: nothing could be done"])
    assert [(item["fix"], item["grade"], item["file"]) for item in entry["blocked"]] == [
        ("mtp-cp-deadlock", "cure", ENGINE)
    ]
    assert entry["results"][0]["verdict"] == "drifted"
    (unmet,) = ran.json["unmet"]
    assert unmet.startswith("mtp-cp-deadlock is drifted on verl 0.7.1 in verl-0.7.1-py3-none-any.whl")
    assert ran.err.splitlines()[-1] == f"required fix not in place: {unmet}"
    assert [path.name.split("-")[0] for path in (tmp_path / "out").iterdir()] == ["megatron_core"]


# ---- errors


@pytest.mark.parametrize(
    ("words", "out", "code"),
    [
        ([], "out", "bad-option"),
        (["nothing-1-py3-none-any.whl"], "out", "bad-wheel"),
        (["in/demo-1.0-py3-none-any.whl"], "file", "not-a-folder"),
        (["in/demo-1.0-py3-none-any.whl"], "file/out", "not-a-folder"),
    ],
)
def test_an_error_is_in_the_json_too(words: list[str], out: str, code: str, tmp_path: Path) -> None:
    demo(tmp_path / "in")
    (tmp_path / "file").touch()
    ran = make(tmp_path / out, *(tmp_path / word for word in words), "--output-format", "json")
    assert (ran.code, ran.json["error"]["code"]) == (2, code)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["os._exit(9)", "raise KeyboardInterrupt"])
def test_a_run_that_was_killed_or_interrupted_leaves_nothing_for_longer_than_the_next(end: str, tmp_path: Path) -> None:
    folder, out = tmp_path / "tmp", tmp_path / "out"
    folder.mkdir()
    code = f"""if 1:
        import os, sys
        from unhang.cli.main import main
        from unhang.store import disk
        def run(operation, *words, **named):
            if operation is os.replace: {end}
            return operation(*words, **named)
        disk.run = run
        sys.exit(main(sys.argv[1:]))
    """
    ran = cli.python("-c", code, "wheel", wheels.fetch(*VERL), "-o", out, env={"TMPDIR": str(folder)})
    left = [path.name[-4:] for place in (folder, out) for path in place.iterdir()]
    assert (ran.code, len(left)) == ((9, 2) if "exit" in end else (130, 0))
    assert make(out, demo(tmp_path / "in"), tmp=folder).code == 2
    assert [*folder.iterdir(), *out.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["purelib", pytest.param("platlib", marks=pytest.mark.slow)])
def test_what_the_data_folder_puts_into_site_packages_is_rewritten(scheme: str, tmp_path: Path) -> None:
    source = in_data(tmp_path / "in", scheme)
    ran = make(tmp_path / "out", source)
    assert (ran.code, ran.out.count("applied")) == (0, 1), ran.out + ran.err
    (path,) = (tmp_path / "out").iterdir()
    with WheelFile.open(path) as opened:
        opened.validate_record()
    env = environments.make_env(tmp_path / "env")
    install("pip", path, env)
    assert cli.called("check", "--python", env.python, "--require", "mtp-cp-deadlock").code == 0


def test_a_hostile_or_damaged_wheel_is_refused_before_another_is_written(tmp_path: Path) -> None:
    hostile, damaged = demo(tmp_path / "hostile", add={"../outside.py": b""}), demo(tmp_path / "damaged")
    with zipfile.ZipFile(damaged, "a") as archive:
        archive.writestr("demo/bomb", b"x" * 99)
        archive.getinfo("demo/bomb").CRC = 0  # for the central directory
    for path, error in (hostile, "error[bad-wheel]"), (damaged, "member 'demo/bomb' is damaged"):
        ran = make(tmp_path / "out", wheels.fetch(*VERL), path, tmp=tmp_path)
        assert (ran.code, error in ran.err) == (2, True)
        assert {path.name for path in tmp_path.iterdir()} == {"hostile", "damaged"}


def test_a_wheel_without_an_upstream_is_refused_but_a_requirements_file_may_list_it(tmp_path: Path) -> None:
    other, out = demo(tmp_path / "other"), tmp_path / "out"
    for words, name in ([other], other.name), ([wheels.fetch(*VERL), "--upstream", "ms-swift"], "verl-0.7.1-"):
        ran = make(out, *words)
        assert (ran.code, out.exists()) == (2, False)
        assert f"error[no-upstream]: {name}" in ran.err
    (tmp_path / "requirements.txt").write_text(f"{other}\n{wheels.fetch(*VERL)}\n")
    ran = make(out, "-r", tmp_path / "requirements.txt", "--no-index")
    assert (ran.code, [path.name for path in out.iterdir()]) == (0, [f"verl-0.7.1{OURS}-py3-none-any.whl"]), ran.err
    assert f"{other.name}\n  not written: it needs nothing" in ran.out


def test_a_failed_download_writes_nothing(tmp_path: Path) -> None:
    index = find_links(tmp_path / "index", VERL)
    options = ["megatron-core==0.17.1", "--python-version", "3.12", *index]
    ran = make(tmp_path / "out", wheels.fetch(*VERL), *options)
    assert ran.code == 2
    assert "error[no-such-wheel]: pip could not download megatron-core==0.17.1" in ran.err
    assert not (tmp_path / "out").exists()


def test_a_local_wheel_needs_no_subprocess(tmp_path: Path) -> None:
    words = ["wheel", str(wheels.fetch(*VERL)), "-o", str(tmp_path)]
    code = f"import sys; from unhang.cli.main import main; main({words!r})"
    code += "; print('subprocesses', sum('Popen' in e for e in seen))"
    audit = "import sys; seen = []; sys.addaudithook(lambda event, _: seen.append(event)); "
    done = subprocess.run([sys.executable, "-c", audit + code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.splitlines()[-1] == "subprocesses 0"

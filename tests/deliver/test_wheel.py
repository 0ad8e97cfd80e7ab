"""Wheels with the fixes in them: what installers, the tool itself and a reader of the archive find in them."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from installer.sources import WheelFile

from support import cli, environments, wheels
from unhang.deliver import download, wheel
from unhang.shapes import catalog

CORE, VERL, SWIFT = ("megatron-core", "0.17.1"), ("verl", "0.7.1"), ("ms-swift", "4.6.0")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
CHANGED = {
    CORE: {
        "megatron/core/parallel_state.py",
        "megatron/core/transformer/moe/experts.py",
        "megatron/training/utils.py",
    },
    VERL: {ENGINE},
    SWIFT: {"swift/megatron/utils/megatron_lm_utils.py"},
}


def make(out: Path, *arguments: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> cli.Ran:
    return cli.unhang("wheel", *arguments, "-o", out, env=env)


def made(out: Path, *release: str) -> Path:
    """The rewritten wheel of a pinned release."""
    ran = make(out, wheels.fetch(*release))
    assert ran.code == 0, ran.err
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def verl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("verl"), *VERL)


def records(path: Path) -> dict[str, tuple[str, str]]:
    with zipfile.ZipFile(path) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        rows = csv.reader(io.StringIO(archive.read(name).decode()))
        return {row[0]: (row[1], row[2]) for row in rows}


def plain(name: str) -> str:
    return name.replace("+unhang.1.dist-info/", ".dist-info/")


def attributes(info: zipfile.ZipInfo) -> tuple[object, ...]:
    return info.date_time, info.external_attr, info.internal_attr, info.create_system, info.extra, info.comment


@pytest.mark.parametrize("release", [CORE, VERL, SWIFT], ids=" ".join)
def test_every_other_byte_is_as_it_was(release: tuple[str, str], tmp_path: Path) -> None:
    source = wheels.fetch(*release)
    path = made(tmp_path, *release)
    assert path.name == source.name.replace(f"-{release[1]}-", f"-{release[1]}+unhang.1-")
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(path) as after:
        assert after.testzip() is None
        names = [plain(name) for name in after.namelist()]
        notice = names.pop(-2)
        assert notice.endswith(".dist-info/UNHANG-NOTICE.txt")
        assert names == before.namelist()
        for old, new in zip(before.infolist(), [it for it in after.infolist() if plain(it.filename) != notice]):
            assert attributes(old) == attributes(new)
            if old.filename in CHANGED[release] or old.filename.endswith(("/METADATA", "/RECORD")):
                assert before.read(old) != after.read(new)
            else:
                assert (old.CRC, old.compress_type, old.compress_size) == (
                    new.CRC,
                    new.compress_type,
                    new.compress_size,
                )
                assert before.read(old) == after.read(new)
        (metadata,) = [name for name in after.namelist() if name.endswith("/METADATA")]
        now = after.read(metadata).replace(
            f"\nVersion: {release[1]}+unhang.1".encode(), f"\nVersion: {release[1]}".encode()
        )
        assert now == before.read(plain(metadata))


@pytest.mark.parametrize("release", [CORE, VERL, SWIFT], ids=" ".join)
def test_record_is_exact_and_the_installer_library_holds_it_so(release: tuple[str, str], tmp_path: Path) -> None:
    path = made(tmp_path, *release)
    rows = records(path)
    with zipfile.ZipFile(path) as archive:
        files = [name for name in archive.namelist() if not name.endswith("/")]
        assert sorted(rows) == sorted(files)
        for name in files:
            if not name.endswith("/RECORD"):
                data = archive.read(name)
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert rows[name] == (f"sha256={digest}", str(len(data)))
        listed = next(name for name in files if name.endswith("/RECORD"))
        ends = archive.read(listed)
        with zipfile.ZipFile(wheels.fetch(*release)) as before:
            old = before.read(plain(listed))
        assert ends.count(b"\r\n") == (0 if b"\r\n" not in old else old.count(b"\r\n") + 1)
    with WheelFile.open(path) as opened:
        opened.validate_record()


def test_the_rewritten_files_are_those_of_apply_and_the_notice_names_them(tmp_path: Path) -> None:
    path = made(tmp_path / "out", *CORE)
    site = cli.unpack(tmp_path / "site", CORE)
    assert cli.unhang("apply", "--target", site).code == 0
    with zipfile.ZipFile(path) as archive:
        for name in CHANGED[CORE]:
            assert archive.read(name) == (site / name).read_bytes()
        notice = archive.read("megatron_core-0.17.1+unhang.1.dist-info/UNHANG-NOTICE.txt").decode()
    assert all(name in notice for name in CHANGED[CORE])
    assert hashlib.sha256(wheels.fetch(*CORE).read_bytes()).hexdigest() in notice


def test_the_same_input_makes_the_same_bytes(verl: Path, tmp_path: Path) -> None:
    again = made(tmp_path, *VERL)
    assert again.read_bytes() == verl.read_bytes()
    inode = again.stat().st_ino
    assert "there already" in make(tmp_path, wheels.fetch(*VERL)).out
    assert again.stat().st_ino == inode


def install(how: str, path: Path, env: environments.Env) -> None:
    if how == "pip":
        env.install(path)
    elif how == "uv":
        uv = shutil.which("uv") or os.path.join(os.path.dirname(sys.executable), "uv")
        words = ["pip", "install", "--offline", "--no-deps", "--quiet", "--python", str(env.python)]
        environments.run(uv, *words, str(path), cwd=env.prefix)
    else:
        words = ["-m", "installer", "--no-compile-bytecode", "--prefix", str(env.prefix), "--validate-record", "all"]
        environments.run(sys.executable, *words, str(path), cwd=env.prefix)


@pytest.mark.parametrize("how", ["pip", "uv", "installer"])
def test_installed_it_is_applied_and_revert_says_what_to_do(how: str, verl: Path, tmp_path: Path) -> None:
    env = environments.make_env(tmp_path / "env")
    install(how, verl, env)
    check = cli.unhang("check", "--python", env.python, "--output-format", "json")
    assert check.code == 0, check.out
    (result,) = check.json["results"]
    assert (result["verdict"], result["version"], result["detail"]) == ("applied", "0.7.1", "")
    name = env.run("-c", "from importlib.metadata import version; print(version('verl'))")
    assert name.strip() == "0.7.1+unhang.1"
    ran = cli.unhang("revert", "--python", env.python)
    assert ran.code == 1
    assert "verl 0.7.1+unhang.1 was installed from a wheel with the fixes in it" in ran.err
    assert "pip install --force-reinstall --no-deps verl==0.7.1\n" in ran.err
    assert cli.unhang("apply", "--python", env.python).code == 0
    assert not (env.prefix / "share").exists()
    pip = [environments.pip_python(), "-m", "pip", "--python", str(env.python), "uninstall", "-q", "-y", "verl"]
    environments.run(*pip, cwd=tmp_path)
    assert not [path for path in env.site.glob("verl*/**/*") if path.is_file()]


def test_a_requirement_of_the_plain_version_takes_it_before_the_plain_wheel(verl: Path, tmp_path: Path) -> None:
    index = offline(VERL, folder=tmp_path / "index")
    env = environments.make_env(tmp_path / "env")
    words = [environments.pip_python(), "-m", "pip", "--python", str(env.python), "install", "-q", "--no-deps"]
    environments.run(*words, *index, "--find-links", str(verl.parent), "verl==0.7.1", cwd=tmp_path)
    assert (env.site / "verl-0.7.1+unhang.1.dist-info").is_dir()


def offline(*projects: tuple[str, str], folder: Path) -> list[str]:
    """The options with which pip sees these releases alone."""
    folder.mkdir()
    for project in projects:
        (folder / wheels.fetch(*project).name).symlink_to(wheels.fetch(*project))
    return ["--no-index", "--find-links", str(folder)]


def test_releases_are_downloaded_also_for_another_python_and_that_is_said(tmp_path: Path) -> None:
    fixed = ("verl", "0.9.1")
    index = offline(CORE, VERL, fixed, folder=tmp_path / "index")
    ran = make(tmp_path / "out", "megatron-core==0.17.1", "verl==0.7.1", "verl==0.9.1", *index)
    assert ran.code == 0, ran.err
    here = sys.version_info[:2]
    told = f"megatron-core==0.17.1 has no wheel for Python {here[0]}.{here[1]}; this is its wheel for Python 3.12"
    assert (told in ran.err) == (here != (3, 12))
    # there its one wheel is for any Python, and its metadata says which
    assert ("verl==0.9.1 has no wheel for Python" in ran.err) == (here >= (3, 13))
    assert "verl-0.9.1-py3-none-any.whl" in ran.out
    assert "not written: it needs nothing" in ran.out
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert [name.split("-")[:2] for name in names] == [["megatron_core", "0.17.1+unhang.1"], ["verl", "0.7.1+unhang.1"]]
    for name in names:
        assert f"written: {tmp_path / 'out' / name}" in ran.out


def test_what_there_is_no_wheel_of_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    index = offline(VERL, folder=tmp_path / "index")
    ran = make(tmp_path / "out", "verl==0.7.1", "megatron-core==0.17.1", *index)
    assert ran.code == 2
    assert "error[no-such-wheel]: pip could not download megatron-core==0.17.1" in ran.err
    assert not (tmp_path / "out").exists()
    ran = make(tmp_path / "out", "megatron-core==0.17.1", "--python-version", "3.9", *index)
    assert "error[no-such-wheel]" in ran.err
    assert "error[bad-option]" in make(tmp_path / "out").err


def test_hashes_are_pips_to_check(tmp_path: Path) -> None:
    index = offline(VERL, folder=tmp_path / "index")
    wanted = tmp_path / "requirements.txt"
    digest = hashlib.sha256(wheels.fetch(*VERL).read_bytes()).hexdigest()
    wanted.write_text(f"verl==0.7.1 --hash=sha256:{digest}\n")
    assert make(tmp_path / "out", "-r", wanted, "--require-hashes", *index).code == 0
    wanted.write_text(f"verl==0.7.1 --hash=sha256:{'0' * 64}\n")
    ran = make(tmp_path / "other", "-r", wanted, "--require-hashes", *index)
    assert ran.code == 2
    assert "error[download-failed]" in ran.err
    assert "DO NOT MATCH THE HASHES" in ran.err
    assert digest in ran.err
    assert not (tmp_path / "other").exists()


def test_an_index_that_cannot_be_reached_is_not_one_without_the_release(tmp_path: Path) -> None:
    env = {"PIP_RETRIES": "1", "PIP_CONFIG_FILE": os.devnull}
    ran = make(tmp_path / "out", "verl==0.7.1", "--index-url", "http://127.0.0.1:9/simple", env=env)
    assert ran.code == 2
    assert "error[download-failed]: pip could not download verl==0.7.1: " in ran.err
    assert "connection broken by" in ran.err


def test_without_pip_uv_brings_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = offline(VERL, folder=tmp_path / "index")
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec {environments.pip_python()} "$@"\n')
    uv.chmod(0o755)
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "got").mkdir()
    said: list[str] = []
    wanted = download.Wanted(None, tuple(index))
    (got,) = download.fetch(["verl==0.7.1"], wanted, str(tmp_path / "got"), said.append)
    assert Path(got).read_bytes() == wheels.fetch(*VERL).read_bytes()
    assert said == []
    uv.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Exception) as caught:
        download.fetch(["verl==0.7.1"], wanted, str(tmp_path / "got"), said.append)
    assert getattr(caught.value, "code", None) == "no-pip"


def test_a_required_fix_that_does_not_apply_exits_1_with_the_reason_last(tmp_path: Path) -> None:
    with zipfile.ZipFile(wheels.fetch(*VERL)) as archive:
        source = archive.read(ENGINE).replace(b"self.is_mp_src_rank_with_outputs():", b"True:", 1)
    edited = altered(tmp_path / "in", replace={ENGINE: source})
    ran = make(
        tmp_path / "out", edited, wheels.fetch(*CORE), "--require", "mtp-cp-deadlock", "--require", "expert-dp-warmup"
    )
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith(
        "required fix not in place: mtp-cp-deadlock is drifted on verl 0.7.1 in verl-0.7.1-py3-none-any.whl"
    )
    assert "not written: nothing could be done" in ran.out
    assert [path.name.split("-")[0] for path in (tmp_path / "out").iterdir()] == ["megatron_core"]


def test_the_json_tells_each_wheel_and_what_became_of_it(tmp_path: Path) -> None:
    index = offline(CORE, VERL, ("verl", "0.9.1"), folder=tmp_path / "index")
    local = wheels.fetch(*VERL)
    options = ["megatron-core==0.17.1", "verl==0.9.1", local, *index, "--output-format", "json"]
    ran = make(tmp_path / "out", *options, "--python-version", "3.12")
    assert ran.code == 0, ran.err
    told = ran.json["wheels"]
    assert [item["requirement"] for item in told] == ["megatron-core==0.17.1", "verl==0.9.1", str(local)]
    assert [(item["project"], item["version"]) for item in told] == [CORE, ("verl", "0.9.1"), VERL]
    assert [item["output"] is None for item in told] == [False, True, False]
    for item in told:
        source = wheels.fetch(item["project"], item["version"])
        assert item["input"] == {"file": source.name, "sha256": hashlib.sha256(source.read_bytes()).hexdigest()}
        if item["output"]:
            path = Path(item["output"]["path"])
            assert item["output"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
            assert item["output"]["version"] == f"{item['version']}+unhang.1" == path.name.split("-")[1]
            assert item["output"]["written"] is True
        assert {row["location"] for row in item["results"]} == {source.name}
    assert told[1]["notes"] == ["not written: it needs nothing"]
    assert {row["fix"] for row in told[0]["results"] if row["verdict"] == "applied"} == {
        "empty-expert-hang", "expert-dp-warmup", "sft-packed-seq-broadcast",
    }  # fmt: skip
    site = cli.unpack(tmp_path / "site", CORE, VERL)
    assert cli.unhang("apply", "--target", site).code == 0
    alone = make(tmp_path / "out", "megatron-core==0.17.1", local, *index, "--python-version", "3.12", *options[-2:])
    assert [item["output"]["written"] for item in alone.json["wheels"]] == [False, False], "there already"
    check = cli.unhang("check", "--target", site, "--output-format", "json")
    assert alone.json["digest"] == check.json["digest"], "the same code, installed"


def test_the_json_tells_a_note_of_the_download_where_people_are_told_too(tmp_path: Path) -> None:
    other = "3.12" if sys.version_info[:2] != (3, 12) else "3.13"
    source = wheels.fetch(*VERL)
    tag = f"cp{other.replace('.', '')}"
    (tmp_path / "index").mkdir()
    shutil.copy(source, tmp_path / "index" / source.name.replace("-py3-none-", f"-{tag}-none-"))
    options = ["verl==0.7.1", "--no-index", "--find-links", str(tmp_path / "index"), "--output-format", "json"]
    ran = make(tmp_path / "out", *options)
    here = ".".join(map(str, sys.version_info[:2]))
    note = f"note: verl==0.7.1 has no wheel for Python {here}; this is its wheel for Python {other}"
    assert ran.json["wheels"][0]["notes"] == [note.removeprefix("note: ")]
    assert note in ran.err.splitlines()


def test_the_json_tells_what_is_blocked_and_unmet_and_errors(tmp_path: Path) -> None:
    with zipfile.ZipFile(wheels.fetch(*VERL)) as archive:
        source = archive.read(ENGINE).replace(b"self.is_mp_src_rank_with_outputs():", b"True:", 1)
    edited = altered(tmp_path / "in", replace={ENGINE: source})
    ran = make(tmp_path / "out", edited, "--require", "mtp-cp-deadlock", "--output-format", "json")
    assert ran.code == 1
    (told,) = ran.json["wheels"]
    assert told["output"] is None
    assert told["notes"] == ["not written: nothing could be done"]
    assert [(item["fix"], item["file"]) for item in told["blocked"]] == [("mtp-cp-deadlock", ENGINE)]
    assert told["results"][0]["verdict"] == "drifted"
    (unmet,) = ran.json["unmet"]
    assert ran.err.splitlines()[-1] == f"required fix not in place: {unmet}"
    ran = make(tmp_path / "out", tmp_path / "nothing-1-py3-none-any.whl", "--output-format", "json")
    assert (ran.code, ran.json["error"]["code"]) == (2, "bad-wheel")


def altered(
    folder: Path, *, add: Mapping[str, bytes] | None = None, replace: Mapping[str, bytes] | None = None,
    name: str = "verl-0.7.1-py3-none-any.whl",
) -> Path:  # fmt: skip
    """The wheel of verl with other members; not its RECORD."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheels.fetch(*VERL)) as before, zipfile.ZipFile(folder / name, "w") as after:
        for info in before.infolist():
            after.writestr(info, (replace or {}).get(info.filename, before.read(info)), compresslevel=1)
        for member, data in (add or {}).items():
            after.writestr(member, data)
    return folder / name


def test_data_folder_moves_along_and_a_rewritten_wheel_needs_nothing(tmp_path: Path) -> None:
    listed = records(wheels.fetch(*VERL))
    with zipfile.ZipFile(wheels.fetch(*VERL)) as archive:
        record = archive.read("verl-0.7.1.dist-info/RECORD") + b"verl-0.7.1.data/scripts/go,,\n"
    assert listed
    source = altered(
        tmp_path / "in", add={"verl-0.7.1.data/scripts/go": b"#!python\n"},
        replace={"verl-0.7.1.dist-info/RECORD": record}, name="verl-0.7.1-7-py3-none-any.whl",
    )  # fmt: skip
    assert make(tmp_path / "out", source).code == 0
    path = tmp_path / "out" / "verl-0.7.1+unhang.1-7-py3-none-any.whl"
    assert "verl-0.7.1+unhang.1.data/scripts/go" in records(path)
    assert "verl-0.7.1+unhang.1.data/scripts/go" in zipfile.ZipFile(path).namelist()
    ran = make(tmp_path / "again", path)
    assert ran.code == 0
    assert "not written: it needs nothing" in ran.out


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.17.1", "0.17.1+unhang.3"),
        ("0.17.1+cu12", "0.17.1+cu12.unhang.3"),
        ("0.17.1+unhang.2", "0.17.1+unhang.3"),
        ("0.17.1+cu12.unhang.2", "0.17.1+cu12.unhang.3"),
    ],
)
def test_local_versions(version: str, expected: str) -> None:
    assert wheel.local_version(version, 3) == expected


def test_the_generation_counts_up_once_a_rewrite_was_superseded() -> None:
    with open(os.path.join(os.path.dirname(wheels.__file__), "..", "..", "compat", "superseded.json")) as file:
        superseded = json.load(file)["superseded"]
    assert catalog.generation() >= (2 if superseded else 1)


def link(target: str = "../../outside") -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo("verl/link")
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return info, target.encode()


HOSTILE = {
    "climbs": ("../outside.py", b"", "lead out"),
    "climbs inside": ("verl/../../outside.py", b"", "lead out"),
    "absolute": ("/tmp/outside.py", b"", "lead out"),
    "backslash": ("..\\outside.py", b"", "lead out"),
    "drive": ("C:/outside.py", b"", "lead out"),
    "empty part": ("verl//outside.py", b"", "lead out"),
    "newline": ("verl/a\nb.py", b"", "cannot be shown"),
    "link": (*link(), "a link or a device"),
    "file as folder": ("verl/protocol.py/x.py", b"", "both a file and a folder"),
    "second dist-info": ("other-1.dist-info/METADATA", b"", "one .dist-info folder"),
    "signed": ("verl-0.7.1.dist-info/RECORD.jws", b"", "signed"),
}


@pytest.mark.parametrize(("name", "data", "why"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_wheel_is_refused(name: str | zipfile.ZipInfo, data: bytes, why: str, tmp_path: Path) -> None:
    source = altered(tmp_path / "in")
    with zipfile.ZipFile(source, "a") as archive:
        archive.writestr(name, data)
    refused(source, tmp_path, why)


def refused(source: Path, tmp_path: Path, why: str) -> None:
    ran = make(tmp_path / "out", source, env={"TMPDIR": str(tmp_path)})
    assert ran.code == 2
    assert "error[bad-wheel]" in ran.err
    assert why in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["in"], "nothing was unpacked"


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_duplicates_are_refused(tmp_path: Path) -> None:
    source = altered(tmp_path / "in", add={"verl/protocol.py": b"other"})
    refused(source, tmp_path, "two members called 'verl/protocol.py'")


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    source = altered(tmp_path / "in")
    with zipfile.ZipFile(source, "a", zipfile.ZIP_DEFLATED) as archive:
        for number in range(65):
            archive.writestr(f"verl/bomb-{number}", b"")
            archive.getinfo(f"verl/bomb-{number}").file_size = 1 << 24  # what the directory, written last, then says
    refused(source, tmp_path, "unpacks to more than")


def test_a_bomb_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    source = altered(tmp_path / "in")
    with zipfile.ZipFile(source, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("verl/bomb", bytes(1 << 24))
        info = archive.getinfo("verl/bomb")
        info.file_size = 10  # what the central directory, written last, then says
    ran = make(tmp_path / "out", source)
    assert "its member 'verl/bomb' is damaged" in ran.err
    assert not (tmp_path / "out").exists()


def test_members_that_overlap_are_refused(tmp_path: Path) -> None:
    source = altered(tmp_path / "in")
    with zipfile.ZipFile(source, "a") as archive:
        archive.writestr("verl/a", b"x" * 99)
        archive.getinfo("verl/a").header_offset = archive.getinfo("verl/protocol.py").header_offset
    refused(source, tmp_path, "overlaps another")


@pytest.mark.parametrize("name", ["verl.whl", "verl-0.7.2-py3-none-any.whl", "megatron_core-0.7.1-py3-none-any.whl"])
def test_a_name_that_is_not_its_own_is_refused(name: str, tmp_path: Path) -> None:
    refused(altered(tmp_path / "in", name=name), tmp_path, "dist-info folder" if "-" in name else "its name is not")


def test_what_is_no_archive_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / "verl-0.7.1-py3-none-any.whl"
    source.write_bytes(wheels.fetch(*VERL).read_bytes()[:100_000])
    refused(source, tmp_path, "no zip archive")
    source.unlink()
    refused(source, tmp_path, "no such file")


def test_for_a_wheel_that_is_here_nothing_is_started(tmp_path: Path) -> None:
    words = ["wheel", str(wheels.fetch(*VERL)), "-o", str(tmp_path)]
    code = f"import sys; from unhang.cli.main import main; main({words!r})"
    code += "; print('subprocesses', sum('Popen' in e for e in seen))"
    audit = "import sys; seen = []; sys.addaudithook(lambda event, _: seen.append(event)); "
    done = subprocess.run([sys.executable, "-c", audit + code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.splitlines()[-1] == "subprocesses 0"

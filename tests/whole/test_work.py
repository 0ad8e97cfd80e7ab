"""The work of `unhang check`, counted with strace: the files it opens, and why it needs each.

Unlike time, these counts are exact. A change that makes `check` open another file adds it here, with the reason.
"""

import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import unhang
from support import cli, packed, work
from support import environments as make
from unhang.plugins import packs
from unhang.shapes import catalog

pytestmark = pytest.mark.skipif(work.STRACE is None, reason="no strace on this machine: no system call is counted")

RELEASES = (("megatron-core", "0.17.1"), ("verl", "0.7.1"), ("ms-swift", "4.6.0"))
# Every file of the environment that `check` opens once, and what for.
READ = {
    "megatron/core/package_info.py": "the version",
    "verl/version/version": "the version",
    "swift/version.py": "the version",
    "megatron_core-0.17.1.dist-info/RECORD": "whether it lists the package: a wheel",
    "verl-0.7.1.dist-info/RECORD": "the same",
    "ms_swift-4.6.0.dist-info/RECORD": "the same",
    "megatron/training/initialize.py": "how torch.distributed starts",
    "swift/megatron/arguments/sft_args.py": "the same",
    "swift/utils/torch_utils.py": "the same",
    "verl/utils/distributed.py": "the same",
    "verl/workers/megatron_workers.py": "the same",
    **{target.file: f"a function of {fix.id}" for fix in catalog.fixes().values() for target in fix.functions},
    **{
        file: "what runs instead"
        for fix in catalog.fixes().values()
        for row in fix.manifest.get("instead", ())
        for file in row["files"]
    },
}
UPSTREAMS = [f"{name}.json" for name in packs.names()]
# Our own data: what each upstream is, what is known of each fix; releases.json, because one function is absent, and
# because it has the order of the releases after one that needs a fix.
_THERE = {"megatron-lm", *(name for name, _ in RELEASES)}
_HERE = [fix for fix in catalog.fixes().values() if _THERE & {it.upstream for it in fix.targets}]
DATA = {"releases.json", *UPSTREAMS, *(f"{fix.id}.json" for fix in _HERE)}
# System calls that name a path: the search for modules along sys.path, then each part of the path of a file and of its
# package (for links), and a few for each file. Measured on Python 3.10 to 3.13: 713 to 897, depending on where they are
# installed. More is a regression.
CALLS_OF_IMPORTS = 640
CALLS_OF_FILE = 8


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Share what is kept of the installed packs with no test that runs meanwhile."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _run(
    *arguments: str | os.PathLike[str],
    cwd: str | os.PathLike[str] = "/",
    python: str | os.PathLike[str] = sys.executable,
    virtual_env: str | os.PathLike[str] = "",
) -> work.Work:
    """Return the work of a run of Python whose bytecode is already compiled."""
    neutral = dict.fromkeys(("CONDA_PREFIX", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"), "")
    neutral["VIRTUAL_ENV"] = os.fspath(virtual_env)
    command = [os.fspath(python), *[os.fspath(word) for word in arguments]]
    subprocess.run(command, capture_output=True, check=False, env={**os.environ, **neutral}, cwd=cwd)
    return work.count(command, environment=neutral, cwd=Path(cwd))


def _check(*arguments: str | os.PathLike[str], **how: str | os.PathLike[str]) -> work.Work:
    return _run("-m", "unhang", "check", "--allow-none", *arguments, **how)


def _below(did: work.Work, folder: Path) -> list[str]:
    real = os.path.join(os.path.realpath(folder), "")
    return [path.removeprefix(real) for path in did.opened if path.startswith(real)]


def _data(did: work.Work) -> list[str]:
    """Return the JSON files that were opened, but the one that has what is installed beside unhang."""
    files = [path for path in did.opened if path.endswith(".json")]
    kept = [path for path in files if path.split(os.sep)[-3:-1] == ["unhang", "packs"]]
    assert len(kept) <= 1
    return [os.path.basename(path) for path in files if path not in kept]


def _crowd(folder: Path, numbers: Sequence[int]) -> None:
    for index in numbers:
        (folder / f"other{index}-1.0.dist-info").mkdir()
        (folder / f"other{index}-1.0.dist-info" / "RECORD").touch()
        (folder / f"other{index}").mkdir()
        (folder / f"other{index}" / "__init__.py").touch()
    then = time.time() - 1000  # what is installed beside unhang is read again while a folder may still be changing
    os.utime(folder, (then + max(numbers), then + max(numbers)))


def test_only_what_is_needed_is_opened_and_each_file_once(tmp_path: Path) -> None:
    site = cli.unpack(tmp_path / "site", *RELEASES)
    checked = _check("--target", site)
    there = [path for path in READ if (site / path).exists()]
    assert sorted(_below(checked, site)) == sorted(there)
    assert sorted(_data(checked)) == sorted([*["manifest.json"] * len(catalog.fixes()), *DATA])
    assert [folder for folder in checked.listed if folder.startswith(str(site))] == []
    ours = os.path.dirname(os.path.realpath(unhang.__file__))
    modules = {Path(path).name.split(".")[0] for path in checked.opened if path.startswith(ours)}
    assert not modules & {
        "plan",
        "one_file",
        "diff",
        "excerpt",
        "shape",
        "apply",
        "transaction",
        "lock",
        "receipt",
        "revert",
    }
    assert {"check_command", "locate", "observe", "decide", "report"} <= modules

    did = work.beyond(checked, _run("-c", "pass"))
    size = sum(os.path.getsize(path) for path in did.opened if os.path.isfile(path))
    assert sum((site / path).stat().st_size for path in there if path.endswith(".py")) < did.read <= size
    parts = sum(len(Path(os.path.realpath(site / path)).parts) for path in there)
    assert did.calls <= CALLS_OF_IMPORTS + 2 * parts + CALLS_OF_FILE * len(there)


def test_one_upstream_needs_the_data_of_its_own_fixes_and_what_comes_after_it(tmp_path: Path) -> None:
    site = cli.unpack(tmp_path, ("megatron-bridge", "0.6.2"))
    fixes = catalog.fixes().values()
    mine = {f"{fix.id}.json" for fix in fixes if any(it.upstream == "megatron-bridge" for it in fix.functions)}
    assert {*_data(_check("--target", site))} == {"manifest.json", "releases.json", *UPSTREAMS, *mine}, (
        "and no data of another upstream's fix"
    )


def test_a_pack_of_thirty_fixes_asks_at_most_half_as_much_again(tmp_path: Path) -> None:
    site = cli.unpack_targets(tmp_path / "site", *RELEASES)
    acme = packed.pack(tmp_path / "acme", *(f"acme-{number:02}" for number in range(30)))
    alone, more = (_check("--target", site, *options) for options in ((), ("--pack", acme)))
    new = {"pack.json", "facts.json", *(f"acme-{number:02}.json" for number in range(30))}
    assert {*_data(more)} - {*_data(alone)} == new, "the second is the schema of the others"
    assert more.calls <= 1.5 * alone.calls
    codemods = [path for path in more.opened if path.startswith(str(acme / "codemods")) and path.endswith(".py")]
    assert len(codemods) == len({*codemods}), (
        "each is compared with what is on record, and not imported: no second read"
    )
    assert not [path for path in more.opened if "libcst" in path]


@pytest.mark.parametrize(
    "option",
    [
        "--target",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("own interpreter", "--python", "$VIRTUAL_ENV")),
    ],
)
def test_the_work_does_not_grow_with_the_environment(option: str, tmp_path: Path) -> None:
    env = make.make_env(tmp_path / "env")
    for name in ("codemods", "compat", "patches", "upstreams"):  # an editable install has these elsewhere
        folder = importlib.import_module(f"unhang.{name}").__path__[0]
        shutil.copytree(folder, env.site / "unhang" / name, dirs_exist_ok=True)
    cli.unpack(env.site, *RELEASES)

    def checked() -> work.Work:
        if option == "--target":
            return _check("--target", env.site)
        if option == "--python":  # not our own interpreter
            return _check("--python", env.python)
        if option == "$VIRTUAL_ENV":
            return _check(cwd=env.prefix, virtual_env=env.prefix)
        return _check(cwd=env.prefix, python=env.python)

    _crowd(env.site, range(10))
    few = checked()
    _crowd(env.site, range(10, 400))
    many = checked()
    assert {path for path in READ if (env.site / path).exists()} <= set(_below(few, env.site))
    assert sorted(many.opened) == sorted(few.opened), "two processes open theirs in any order"
    # an interpreter that was found, and must be asked, runs only if nobody else may write what is in site-packages
    looks = 4 * 2 * 390 if option == "$VIRTUAL_ENV" else 0
    assert 0 <= many.calls - few.calls <= looks

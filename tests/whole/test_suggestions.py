"""Every command that an output suggests, run in a shell as it stands: it is accepted, and does what its line says."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, NamedTuple

import pytest

from support import cli, environments, suggestions
from support.suggestions import Suggestion

ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
PARALLEL_STATE = "megatron/core/parallel_state.py"
MTP, WARMUP = "mtp-cp-deadlock", "expert-dp-warmup"
VERL, SWIFT, CORE = ("verl", "0.7.1"), ("ms-swift", "4.6.0"), ("megatron-core", "0.17.1")
KILL = """
import os, sys
from unhang.store import disk
real = disk.run
def run(operation, *arguments, **options):
    if any(str(word).endswith("journal.done") for word in arguments):
        os._exit(9)
    return real(operation, *arguments, **options)
disk.run = run
from unhang.cli.main import main
main(sys.argv[1:])
"""


class Case(NamedTuple):
    """A workspace, what was done in it before, and the commands whose outputs are read."""

    lay_out: Callable[[Path], object]
    """Fills an empty folder, in which the commands are then run."""
    options: tuple[str, ...]
    before: tuple[Callable[[Path], object], ...] = ()
    commands: tuple[str, ...] = ("check", "apply", "diff", "overlay out")
    least: int = 2
    """How many suggestions there are, at the least."""
    is_curable: bool = True
    """Whether ``apply`` leaves nothing to do."""
    python_path: str = ""


def site(*releases: tuple[str, str], name: str = "site") -> Callable[[Path], Path]:
    return lambda top: cli.unpack_targets(top / name, *releases)


def edited(file: str, old: str, new: str) -> Callable[[Path], object]:
    def edit(top: Path) -> None:
        text = (top / "site" / file).read_text()
        assert old in text
        (top / "site" / file).write_text(text.replace(old, new))

    return edit


def ran(*words: str) -> Callable[[Path], object]:
    return lambda top: cli.installed(*words, cwd=top)


def accepted(*command: str, options: tuple[str, ...] = ("--target", "site")) -> Callable[[Path], object]:
    """Run a command that writes, with the token that the diff of unknown shapes shows."""

    def accept(top: Path) -> None:
        (token,) = set(
            re.findall(r"[0-9a-f]{16}-\d+-[0-9a-f]{16}", cli.installed("diff", "--unknown", *options, cwd=top).out)
        )
        assert cli.installed(*command, *options, "--accept", token, cwd=top).code == 0

    return accept


def removed(name: str) -> Callable[[Path], object]:
    return lambda top: shutil.rmtree(top / name)


def newer(top: Path) -> None:
    (top / "site/verl/version/version").write_text("9.9.9\n")


def before_the_floor(top: Path) -> None:
    """Like core 0.8 and 0.9: an unknown shape, whose anchors match, but a name that the rewrite uses is missing."""
    site(CORE)(top)
    edited("megatron/core/package_info.py", "MINOR = 17", "MINOR = 9")(top)
    edited(PARALLEL_STATE, "_EXPERT_DATA_PARALLEL_GROUP = None", "")(top)
    edited(PARALLEL_STATE, "    _set_global_memory_buffer()\n\n", "    _set_global_memory_buffer()\n    old()\n\n")(top)


def shadowed(top: Path) -> None:
    """A wheel in the environment, and a checkout that hides it from a script in the checkout's folder."""
    cli.unpack_targets(environments.make_env(top / "env").site, VERL)
    cli.unpack_targets(top / "ml work", VERL)
    (top / "ml work/pretrain_gpt.py").touch()


def dot_venv(top: Path) -> None:
    cli.unpack_targets(environments.make_env(top / ".venv").site, VERL, SWIFT)


def outdated_overlay(top: Path) -> None:
    """On PYTHONPATH: made before the original was edited, outside of the function."""
    site = environments.make_env(top / ".venv").site
    cli.unpack_targets(site, VERL)
    assert cli.installed("overlay", "over lay", cwd=top).code == 0
    (site / ENGINE).write_bytes((site / ENGINE).read_bytes() + b"mine = 1\n")


def killed(top: Path) -> None:
    assert cli.python("-c", KILL, "apply", "--target", "site", cwd=top).code == 9


DRIFT = edited(ENGINE, "        output = {}\n", "        output = dict()\n")
NO_ANCHOR = edited(ENGINE, "self.is_mp_src_rank_with_outputs()", "True")
UNKNOWN = ("check", "apply", "diff", "diff --unknown", "overlay out")
SITE, QUOTED = ("--target", "site"), 'it\'s "a" $site'
SCRIPT = ("--python", "env/bin/python", "--script", "ml work/pretrain_gpt.py")
APPLIED = ran("apply", *SITE)
CASES = {
    "needed": Case(site(VERL, SWIFT, CORE), SITE),
    "no receipt": Case(site(VERL), SITE, (APPLIED, removed("site/.unhang")), ("check", "revert"), least=0),
}
SLOW = {
    "script": Case(shadowed, SCRIPT),
    "drifted": Case(site(VERL), SITE, (DRIFT,), UNKNOWN, least=3, is_curable=False),
    "quoted": Case(site(VERL, name=QUOTED), ("--source", QUOTED)),
    "overlay": Case(outdated_overlay, (), commands=("check", "overlay --check 'over lay'"), python_path="over lay"),
    "edited since": Case(site(VERL, SWIFT), SITE, (APPLIED, DRIFT), ("check", "revert"), least=4, is_curable=False),
    "interrupted": Case(site(VERL), SITE, (killed,), ("check", "diff", "overlay out"), least=6),
    "found": Case(dot_venv, ()),
    "required": Case(site(VERL, SWIFT, CORE), (*SITE, "--fix", MTP, "--require", WARMUP)),
    "more was there": Case(site(VERL, SWIFT, CORE), SITE, (ran("apply", *SITE, "--upstream", "verl"),)),
    "no anchor": Case(site(VERL, SWIFT), SITE, (NO_ANCHOR,), UNKNOWN, least=5, is_curable=False),
    "before the floor": Case(before_the_floor, SITE, (), UNKNOWN, least=5, is_curable=False),
    "skipped": Case(site(VERL, SWIFT), (*SITE, "--skip", MTP)),
    "named": Case(site(VERL, SWIFT), (*SITE, "--fix", MTP, "--upstream", "verl")),
    "script, and the wheel before": Case(shadowed, SCRIPT, (ran("apply", "--python", "env/bin/python"),)),
    "unlisted": Case(site(VERL), SITE, (DRIFT, newer), UNKNOWN, least=3, is_curable=False),
    "accepted": Case(site(VERL), SITE, (DRIFT, accepted("apply")), UNKNOWN, least=6, is_curable=False),
    "accepted, and no receipt": Case(
        site(VERL), SITE, (DRIFT, accepted("apply"), removed("site/.unhang")), UNKNOWN, least=2, is_curable=False
    ),
    "accepted in an overlay": Case(
        site(VERL),
        SITE,
        (DRIFT, accepted("overlay", "over lay")),
        ("overlay --check 'over lay'",),
        least=1,
        is_curable=False,
    ),
    "does not parse": Case(site(VERL), SITE, (edited(ENGINE, "import", "def"),), least=1, is_curable=False),
}


def texts(value: Any) -> Iterator[str]:
    """Yield every string of a JSON document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)


def outputs(command: str, case: Case, top: Path) -> Iterator[str]:
    """Yield what a command says, a `check` in each format; after each, the workspace is as the command left it."""
    for name in ["text", "json", "github"] if command == "check" else ["text"]:
        asked = ["--output-format", name] if command == "check" else []
        given = (
            [word.replace("--require", "--fix") for word in case.options]
            if command.startswith("diff")
            else case.options
        )
        ran = cli.installed(*shlex.split(command), *given, *asked, cwd=top, env={"PYTHONPATH": case.python_path})
        assert ran.code in (0, 1) or "interrupted" in ran.err, ran.err
        yield "\n".join([*texts(ran.json)] if name == "json" else [ran.out]) + "\n" + ran.err


def state(top: Path) -> dict[str, tuple[int, str]]:
    """The workspace without what an overlay wrote."""
    return {name: found for name, found in cli.tree(top).items() if not name.startswith("out")}


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_every_suggestion_is_accepted_and_does_what_it_says(name: str, tmp_path: Path) -> None:
    case, top, kept = {**CASES, **SLOW}[name], tmp_path / "work", tmp_path / "kept"
    top.mkdir()
    for step in (case.lay_out, *case.before):
        step(top)
    shutil.copytree(top, kept, symlinks=True)
    env = {"VIRTUAL_ENV": "", "CONDA_PREFIX": "", "PYTHONPATH": case.python_path}

    def restore(source: Path = kept) -> None:
        shutil.rmtree(top)
        shutil.copytree(source, top, symlinks=True)

    tried: set[tuple[str, str]] = set()
    for command in case.commands:
        restore()
        for output in outputs(command, case, top):
            left, after = tmp_path / "left", state(top)
            shutil.rmtree(left, ignore_errors=True)
            shutil.copytree(top, left, symlinks=True)
            for one in suggestions.found(output):
                if (command, one.command) in tried:
                    continue
                tried.add((command, one.command))
                if state(top) != after:
                    restore(left)
                pasted = suggestions.paste(one.command, cwd=top, env=env)
                judge(case, one, pasted, top, state(kept))
    assert len(tried) >= case.least, tried


def judge(
    case: Case, one: Suggestion, pasted: CompletedProcess[str], top: Path, before: dict[str, tuple[int, str]]
) -> None:
    """Check that a command which was run did what its line says."""
    code = pasted.returncode
    if "--run" in one.command:  # also where no rewrite fits
        assert "a run shows " in pasted.stdout
    elif "--unknown" in one.command:
        assert "to accept what follows: " in pasted.stdout, "a diff without a token is not suggested"
    if "--accept" in one.command:
        assert code == 0, "what would be refused is not suggested"
        assert b"# unhang mtp" in (top / "site" / ENGINE).read_bytes()
    if one.lead.endswith("to undo: "):
        assert (code, state(top)) == (0, before)
    elif one.command.startswith(("unhang apply", "unhang overlay")) and case.is_curable:
        assert code == 0
        if one.command.startswith("unhang apply") or case.python_path:
            assert cli.installed("check", *case.options, cwd=top, env={"PYTHONPATH": case.python_path}).code == 0
    elif "--force" in one.command:
        assert code == 0
        assert cli.installed("check", *case.options, cwd=top).code == 1, "they are needed again"


def test_the_finder_finds_them_in_each_form() -> None:
    output = """\
  needed  a  hint: nearest: 2.0; to rewrite it anyway: `unhang apply --fix a`, or `unhang explain a`
1 needed (digest 00); run: unhang apply --target 'a site'
::error file=x,title=unhang a::needed: why (unhang apply --source 'b')
unhang apply --skip a
patched 1 file; to undo: unhang revert && unhang revert --fix b
this is unhang, and unhang apply is no suggestion
"""
    assert [one.command for one in suggestions.found(output)] == [
        "unhang apply --fix a", "unhang explain a", "unhang apply --target 'a site'", "unhang apply --source 'b'",
        "unhang apply --skip a", "unhang revert && unhang revert --fix b",
    ]  # fmt: skip


def test_a_wheel_suggests_itself(tmp_path: Path) -> None:
    """A local wheel without an import that the rewrite needs; and no password of an index is repeated."""
    folder = cli.unpack_targets(tmp_path / "site", VERL)
    edited(ENGINE, "parallel_state as mpu", "parallel_state as mine")(tmp_path)
    record = folder / "verl-0.7.1.dist-info/RECORD"
    kept = [row for row in record.read_text().splitlines() if (folder / row.partition(",")[0]).is_file()]
    record.write_text("\n".join(row.partition(",")[0] + ",," for row in kept) + "\n")
    wheel = shutil.make_archive(str(tmp_path / "a wheel"), "zip", folder)
    (tmp_path / "my wheels").mkdir()
    os.rename(wheel, tmp_path / "my wheels/verl-0.7.1-py3-none-any.whl")
    words = ["wheel", "my wheels/verl-0.7.1-py3-none-any.whl", "-o", "out put", "--skip", WARMUP]
    words += ["--index-url", "https://me:secret@h/simple"]
    for words_ in words, [*words, "--output-format", "json"]:
        ran = cli.installed(*words_, cwd=tmp_path)
        assert ran.code == 1
        assert "secret" not in ran.out + ran.err
        output = ran.err if words_ is words else "\n".join(texts(json.loads(ran.out)))
        (again,) = (one for one in suggestions.found(output) if "wheel" in one.command)
        assert "--index-url https://****@h/simple" in again.command.replace("'", "")
        assert suggestions.paste(again.command, cwd=tmp_path, env={}).returncode == 1

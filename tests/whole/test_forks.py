"""Forks of real releases, with the command: a known shape is patched under any version, an unknown one is explained."""

from pathlib import Path

import pytest

from support import cli

ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
PARALLEL_STATE = "megatron/core/parallel_state.py"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack_targets(tmp_path, ("megatron-core", "0.17.1"), ("verl", "0.7.1"))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1))


def result(site: Path, fix: str) -> dict[str, object]:
    found = cli.called("check", "--target", site, "--fix", fix, "--output-format", "json").json["results"]
    (only,) = (item for item in found if item["shape"] is not None)
    assert isinstance(only, dict)
    return only


def core_version(site: Path, version: str) -> None:
    release, _, local = version.partition("+")
    major, minor, patch = release.split(".")
    text = f"MAJOR = {major}\nMINOR = {minor}\nPATCH = {patch}\nPRE_RELEASE = '{'+' + local if local else ''}'\n"
    rest = "VERSION = (MAJOR, MINOR, PATCH, PRE_RELEASE)\n"
    rest += "__version__ = '.'.join(map(str, VERSION[:3])) + ''.join(VERSION[3:])\n"
    (site / "megatron/core/package_info.py").write_text(text + rest)


@pytest.mark.parametrize("version", ["0.17.1+corp.3", "99.0.0"])
def test_a_fork_with_upstreams_shapes_is_patched_under_any_version(version: str, site: Path) -> None:
    core_version(site, version)
    (site / "verl/version/version").write_text(version)
    edit(site / PARALLEL_STATE, "import torch\n", "import torch\n\nCORP = 3\n")  # no release has exactly this file
    before = cli.called("check", "--target", site, "--output-format", "json")
    assert {item["version"] for item in before.json["results"]} == {version}
    needed = [item for item in before.json["results"] if item["verdict"] == "needed"]
    assert {item["fix"] for item in needed} == set(cli.FOUR)
    assert {(item["code"], item["nearest"]) for item in needed} == {(None, None)}
    cli.applied("--target", site)
    for item in needed:
        assert result(site, item["fix"])["verdict"] == "applied"


def test_in_a_fork_with_a_number_of_its_own_what_is_not_there_blocks_nothing(site: Path) -> None:
    (site / "verl/version/version").write_text("0.1.0")
    (site / "verl/workers/critic/dp_critic.py").unlink()
    chosen = ("--source", site, "--fix", "fsdp-dynamic-bsz")
    states = {True: "not-affected", False: "needed"}
    for item in cli.called_with_all("check", *chosen, "--output-format", "json").json["results"]:
        assert item["verdict"] == states["critic" in item["file"]], item
    assert cli.called_with_all("apply", *chosen).code == 0
    assert cli.called_with_all("check", *chosen).code == 0
    for version in "0.7.1", "0.7.1+acme":  # a release that has it
        (site / "verl/version/version").write_text(version)
        ran = cli.called_with_all("check", *chosen, "--output-format", "json")
        gone = {item["file"] for item in ran.json["results"] if item["code"] == "function-gone"}
        assert (ran.code, gone) == (1, {"verl/workers/critic/dp_critic.py"})


def test_a_name_that_came_in_place_of_another_is_judged_whatever_the_number(tmp_path: Path) -> None:
    site = cli.unpack_targets(tmp_path, ("megatron-core", "0.12.3"))
    core_version(site, "0.13.1")  # a release that has the new names
    chosen = ("--source", site, "--fix", "allgather-empty-expert", "--output-format", "json")
    found = cli.called_with_all("check", *chosen).json["results"]
    mine = [item for item in found if item["fix"] == "allgather-empty-expert"]  # beside what comes along
    assert {item["function"].rpartition("_")[2]: item["verdict"] for item in mine} == {
        "permutation": "needed", "unpermutation": "needed", "postprocess": "not-affected", "preprocess": "not-affected",
    }  # fmt: skip
    assert cli.called_with_all("apply", *chosen).code == 0
    dispatcher = site / "megatron/core/transformer/moe/token_dispatcher.py"
    dispatcher.write_text(dispatcher.read_text().replace("def token_unpermutation(", "def token_back("))
    for version in "0.13.1", "0.1.0", "99.0.0":
        core_version(site, version)
        gone = {item["function"] for item in cli.called_with_all("check", *chosen).json["results"] if item["code"]}
        assert gone == {"MoEAllGatherTokenDispatcher.token_unpermutation"}, "half of the fix is no fix"


@pytest.mark.parametrize(
    ("version", "verdict", "code"),
    [("0.17.1+corp.3", "drifted", "unknown-shape"), ("99.0.0", "unlisted", "newer-than-matrix")],
)
def test_an_unknown_shape_of_a_fork_is_reported_with_the_closest(
    version: str, verdict: str, code: str, site: Path
) -> None:
    core_version(site, version)
    edit(
        site / PARALLEL_STATE, "    _set_global_memory_buffer()\n\n", "    _set_global_memory_buffer()\n    corp()\n\n"
    )
    row = result(site, "expert-dp-warmup")
    assert (row["verdict"], row["code"]) == (verdict, code)
    near = row["nearest"]
    assert isinstance(near, dict)
    assert list(near) == ["shape", "state", "where", "differs"]
    line = (site / PARALLEL_STATE).read_text().splitlines().index("    corp()") + 1
    assert near["differs"] == [{"line": line, "how": "added", "kind": "Expr", "text": "corp()"}]
    assert near["state"] == "affected"
    assert "0.17.1" in near["where"]
    assert f"1 statement differs, at line {line}: `corp()` was added" in str(row["detail"])
    assert "--unknown --fix expert-dp-warmup" in str(row["hint"])


@pytest.mark.parametrize(
    ("below", "code"),
    [
        ("initialize_model_parallel = print", "rebound"),
        ("vars()['initialize_model_parallel'] = print", "rebound-unknown"),
        ("from os.path import *", "rebound-unknown"),
    ],
)
def test_a_function_that_may_be_another_after_an_import_is_not_settled(below: str, code: str, site: Path) -> None:
    fix, path = "expert-dp-warmup", site / PARALLEL_STATE
    where = ("--target", site, "--upstream", "megatron-core", "--fix", fix)
    untouched = path.read_text()
    path.write_text(f"{untouched}\n{below}\n")
    line = len(path.read_text().splitlines())

    def judged() -> None:
        before = path.read_bytes()
        for command in "check", "apply":
            ran = cli.called(command, *where, "--require", fix, "--output-format", "json")
            (row,) = ran.json["results"]
            assert (ran.code, row["verdict"], row["code"]) == (1, "drifted", code)
            assert f"{line}: " in row["detail"]  # after `import *`, other names are not known either
        assert "--accept" not in cli.called("diff", *where, "--unknown").out
        assert path.read_bytes() == before, "nothing is written"

    judged()
    path.write_text(untouched)
    assert cli.called("apply", *where).code == 0
    rewritten = path.read_text()
    path.write_text(f"{rewritten}\n{below}\n")
    line = len(path.read_text().splitlines())
    judged()
    assert cli.called("revert", *where).code == 0
    assert path.read_text() == f"{untouched}\n{below}\n"


def test_a_backend_that_is_not_recognised_is_a_note(site: Path, tmp_path: Path) -> None:
    """The verdict stays, and so does the exit code: code decides, and a person reads."""
    fix, script, path = "expert-dp-warmup", tmp_path / "job.py", site / PARALLEL_STATE
    script.write_text("import torch\ntorch.distributed.init_process_group('flagcx')\n")
    backend = f"{script}:2 starts torch.distributed with backend 'flagcx', with which this fix does nothing"
    noted = f"{backend}: `unhang explain {fix}`"
    where = ("--target", site, "--script", script, "--require", fix, "--upstream", "megatron-core", "--fix", fix)
    (row,) = cli.called("check", *where, "--output-format", "json").json["results"]
    assert (row["verdict"], row["notes"]) == ("needed", [noted])
    for command in "apply", "check":
        ran = cli.called(command, *where)
        assert ran.code == 0
        (row,) = (line for line in ran.out.splitlines() if fix in line and "note: " in line)
        assert [text for text in row.split("  ") if text.startswith("note: ")] == [f"note: {noted}"]
    assert "nothing left to do of these fixes, but read the notes above" in ran.out
    (_, line) = cli.called("check", *where, "--output-format", "github").out.splitlines()
    assert line.partition("::")[2].split("::", 1)[1] == noted
    assert line.startswith(f"::warning file={path},title=unhang {fix} (safeguard)::")


def test_what_compares_functions_is_not_imported_if_all_shapes_are_known(site: Path) -> None:
    code = (
        "import sys\n"
        f"from unhang.cli.main import main; main(['check', '--target', {str(site)!r}, '--upstream', 'verl'])\n"
        "print(*sys.modules)"
    )
    lazy = {"unhang.judge.nearest", "unhang.shapes.outline", "difflib"}

    def loaded() -> set[str]:
        return lazy & set(cli.python("-c", code).out.splitlines()[-1].split())

    assert loaded() == set()
    edit(site / ENGINE, "        output = {}\n", "        output = dict()\n")
    assert loaded() == lazy


def test_no_command_of_ours_makes_an_edit_look_like_a_release(tmp_path: Path) -> None:
    """The rewrite of another function of the file writes its row of RECORD, and so does its undo."""
    site = cli.unpack_targets(tmp_path, ("ms-swift", "3.12.6"))
    file, info = site / "swift/plugin/metric.py", site / "ms_swift-99.0.dist-info"
    (site / "ms_swift-3.12.6.dist-info").rename(info)
    (info / "INSTALLER").write_text("pip\n")
    version = site / "swift/version.py"
    version.write_text(version.read_text().replace("3.12.6", "99.0"))
    mine, other = ("--target", site, "--fix", "mean-metric-dtype"), ("--target", site, "--fix", "infer-metric-rank0")

    def as_is() -> str:
        (item,) = (
            item
            for item in cli.called_with_all("check", *mine, "--output-format", "json").json["results"]
            if item["shape"] is not None
        )
        assert item["verdict"] == "unlisted"
        return str(item["detail"])

    assert cli.called_with_all("apply", *other).code == 0
    edit(
        file, "device=self.device)", "dtype=torch.float32, device=self.device).to(torch.float64)"
    )  # the short check sees a dtype
    assert "upstream's own fix seems to be there, but unhang has rewritten its file" in as_is()
    cli.called_with_all("revert", *other)
    assert "upstream's own fix seems to be there, but " in as_is()

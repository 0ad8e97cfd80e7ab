"""`unhang matrix` on the data of the compat matrix: formats, narrowing, errors."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from support import cli
from unhang.cli.main import main
from unhang.compat import radar
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix
from unhang.tell import matrix_text


def test_json_has_a_row_for_every_release_and_every_fix() -> None:
    document = cli.called("matrix", "--output-format", "json").json
    assert list(document) == ["schema", "rows"]
    assert document["schema"] == 1
    keys = ["upstream", "version", "yanked", "fix", "grade", "kinds", "changes_numbers", "verdict"]
    assert all(list(row) == keys for row in document["rows"])
    known = {fix.id: [fix.grade, list(fix.kinds), fix.changes_numbers] for fix in catalog.fixes().values()}
    assert all([row[key] for key in keys[4:7]] == known[row["fix"]] for row in document["rows"])
    pairs = {(row["upstream"], row["version"], row["fix"]) for row in document["rows"]}
    assert len(pairs) == len(document["rows"])
    assert pairs == {
        (upstream, version, fix)
        for upstream, versions in catalog.releases().items()
        for version in versions
        for fix in catalog.fixes()
    }
    assert {row["verdict"] for row in document["rows"]} <= {"needed", "fixed-upstream", "not-affected"}
    yanked = {(row["upstream"], row["version"]) for row in document["rows"] if row["yanked"]}
    assert {("megatron-core", "0.18.1"), ("megatron-core", "0.19.1")} <= yanked


def test_a_release_has_the_verdicts_of_the_fixes_pages() -> None:
    def verdicts(upstream: str, version: str) -> dict[str, str]:
        ran = cli.called("matrix", "--upstream", upstream, "--version", version, "--output-format", "json")
        assert ran.code == 0
        assert {(row["upstream"], row["version"]) for row in ran.json["rows"]} == {(upstream, version)}
        return {row["fix"]: row["verdict"] for row in ran.json["rows"]}

    none = dict.fromkeys(cli.FOUR, "not-affected")
    assert verdicts("verl", "0.7.0") == none
    assert verdicts("verl", "0.7.1") == {**none, "mtp-cp-deadlock": "needed"}
    assert verdicts("verl", "0.8.0") == {**none, "mtp-cp-deadlock": "fixed-upstream"}
    assert verdicts("megatron-lm", "0.17.1") == {**none, "sft-packed-seq-broadcast": "needed"}
    assert verdicts("megatron-core", "0.18.0") == {
        "empty-expert-hang": "needed",
        "expert-dp-warmup": "needed",
        "mtp-cp-deadlock": "not-affected",
        "sft-packed-seq-broadcast": "fixed-upstream",
    }


def test_the_command_narrows_by_fix_and_by_upstream() -> None:
    whole = cli.called("matrix")
    assert whole.code == 0
    upstreams = ["megatron-core", "megatron-lm", "ms-swift", "verl"]
    assert [line.split(":")[0] for line in whole.out.splitlines() if " releases" in line] == upstreams
    assert max(map(len, whole.out.splitlines())) <= 80
    one = cli.called("matrix", "--fix", "expert-dp-warmup", "--upstream", "ms-swift").out
    assert "expert-dp-warmup" in one
    assert "megatron-core" not in one
    rest = cli.called("matrix", "--skip", "expert-dp-warmup").out
    assert "expert-dp-warmup" not in rest
    assert "ms-swift" not in rest
    assert "empty-expert-" in rest


def test_markdown_is_all_on_stdout() -> None:
    ran = cli.called("matrix", "--output-format", "markdown", "--upstream", "verl")
    fixes = [fix for fix in catalog.fixes().values() if any(target.upstream == "verl" for target in fix.targets)]
    head = " | ".join(f"`{fix.id}` ({fix.grade}; {fix.effect})" for fix in fixes)
    assert ran.out.startswith(f"### verl\n\n| releases | {head} |\n")
    assert ("| 0.7.1 | needed |" in ran.out, ran.err) == (True, "")


def test_only_json_has_pairs_without_a_target() -> None:
    pair = "matrix", "--fix", "mtp-cp-deadlock", "--upstream", "ms-swift", "--output-format"
    assert cli.called(*pair, "text").out == f"{matrix_text.NO_TARGET}\n"
    assert cli.called(*pair, "markdown").out == f"{matrix_text.NO_TARGET}\n"
    assert {row["verdict"] for row in cli.called(*pair, "json").json["rows"]} == {"not-affected"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--version", "0.0.1.x"], "bad-version"),
        (["--version", "99"], "no-such-release"),
        (["--fix", "no-such-fix"], "unknown-fix"),
        (["--skip", "no-such-fix"], "unknown-fix"),
        (["--against-index", "--version", "0.17.1"], "bad-option"),
    ],
)
def test_an_error_has_its_code_in_every_format(arguments: list[str], code: str) -> None:
    text = cli.called("matrix", *arguments)
    assert (text.code, text.out) == (2, "")
    assert text.err.startswith(f"error[{code}]: ")
    assert "hint: " in text.err
    assert cli.called("matrix", *arguments, "--output-format", "json").json["error"]["code"] == code
    assert cli.called("matrix", "--against-index", "--output-format", "svg").code == 2


def test_the_radar_gets_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[tuple[list[str], Sequence[str], str]] = []

    def against_index(fixes: Sequence[Fix], upstreams: Sequence[str], output_format: str) -> int:
        chosen.append(([fix.id for fix in fixes], upstreams, output_format))
        return 1

    monkeypatch.setattr(radar, "against_index", against_index)
    arguments = ["matrix", "--against-index", "--skip", "expert-dp-warmup", "--skip", "mtp-cp-deadlock"]
    assert main([*arguments, "--upstream", "verl", "--output-format", "markdown"]) == 1
    left = [fix for fix in catalog.fixes() if fix not in ("expert-dp-warmup", "mtp-cp-deadlock")]
    assert chosen == [(left, ["verl"], "markdown")]


def test_nothing_slow_is_imported() -> None:
    slow = {"libcst", "requests", "rich", "git", "xml.etree.ElementTree"}
    program = "import sys; from unhang.cli.main import main; main(['matrix']); print(*sys.modules, file=sys.stderr)"
    ran = cli.python("-c", program)
    assert (ran.code, slow & set(ran.err.split())) == (0, set())


def test_upgrade_is_one_table_of_what_each_newer_release_changes(tmp_path: Path) -> None:
    ran = cli.called("matrix", "--upgrade", "verl[mcore]==0.7.1")
    assert ran.out.splitlines() == [
        "verl 0.7.1 needs 1: mtp-cp-deadlock",
        "  release         needs  no longer needed                                    new",
        "  0.8.0 to 0.9.1  0      mtp-cp-deadlock                                     -",
    ]
    lock = tmp_path / "requirements.txt"
    lock.write_text("verl==0.7.1\nmegatron-core==0.16.1\nms-swift @ git+https://a.example/s\n")
    ran = cli.called("matrix", "--upgrade", lock, "--output-format", "json")
    assert (ran.code, ran.err) == (0, "note: not in the matrix: ms-swift git\n")
    assert list(ran.json) == ["schema", "upgrades"]
    verl, core = ran.json["upgrades"]
    assert (verl["distribution"], verl["version"], verl["needs"]) == ("verl", "0.7.1", ["mtp-cp-deadlock"])
    assert [step["version"] for step in verl["steps"]] == ["0.8.0", "0.9.0", "0.9.1"]
    assert core["steps"][0]["brings"] == ["sft-packed-seq-broadcast"]
    assert cli.called("matrix", "--upgrade", "verl==0.9.1").out == (
        "verl 0.9.1 needs none of these fixes; the matrix has no newer release\n"
    )
    both = cli.called("matrix", "--upgrade", "verl==0.8.0", "--upgrade", "ms-swift==4.6.0").out
    assert [line.split()[0] for line in both.splitlines() if line[:1].strip()] == ["verl", "ms-swift"]
    markdown = cli.called("matrix", "--upgrade", "verl==0.7.1", "--output-format", "markdown").out
    assert "| 0.8.0 to 0.9.1 | 0 | mtp-cp-deadlock | - |" in markdown


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("verl",), "bad-option"),
        (("verl>=0.7",), "bad-option"),
        (("torch==2.0",), "bad-option"),
        (("gone/uv.lock",), "unreadable"),
        (("verl==99",), "no-such-release"),
        (("verl==0.7.1", "--version", "0.8"), "bad-option"),
        (("verl==0.7.1", "--output-format", "svg"), "bad-option"),
    ],
)
def test_what_cannot_be_upgraded_is_an_error(arguments: Sequence[str], code: str) -> None:
    ran = cli.called("matrix", "--upgrade", *arguments)
    assert (ran.code, f"error[{code}]" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--output-format", "osv"), "no folder is given"),
        (("-o", "DIR"), "any other format is printed"),
        (("--output-format", "osv", "-o", "DIR", "--version", "0.7.1"), "--version cannot choose some"),
        (("--output-format", "osv", "-o", "DIR", "--against-index"), "writes no advisories"),
    ],
)
def test_advisories_need_a_folder_and_name_all_releases(words: Sequence[str], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "advisories"
    ran = cli.called("matrix", *(str(folder) if word == "DIR" else word for word in words))
    assert (ran.code, ran.out, folder.exists()) == (2, "", False)
    assert "error[bad-option]" in ran.err
    assert said in ran.err


def test_advisories_are_the_same_bytes_each_time_and_the_next_command_is_named(tmp_path: Path) -> None:
    def made(name: str) -> dict[str, bytes]:
        folder = tmp_path / name
        ran = cli.called("matrix", "--output-format", "osv", "-o", folder, "--kind", "hang")
        assert (ran.code, ran.out) == (0, "")
        assert ran.err.splitlines()[0] == f"advisories written into {folder}: 4; next:"
        assert f"--local-db-path '{folder}' -L uv.lock" in ran.err
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert made("some where") == made("else where")

"""Options become a request: places as given, fixes in the catalog's order, required fixes included."""

import re
from pathlib import Path

import pytest

from support import cli
from unhang.cli.arguments import parse
from unhang.cli.requests import fill_in, request, selection
from unhang.errors import UnhangError
from unhang.records import Request, Token

ALL = cli.FOUR


def of(*arguments: str) -> Request:
    return request(parse(["check", *arguments]))


def test_without_options_it_is_about_all_fixes_and_upstreams() -> None:
    assert of() == Request(fixes=ALL)


def test_the_places_are_as_given() -> None:
    assert of("--python", "py", "--script", "run.py") == Request("py", None, None, "run.py", ALL)
    assert of("--target", "site", "--allow-none") == Request(target="site", fixes=ALL, allow_none=True)
    chosen = (("--upstream", "verl"),)
    expected = Request(source="tree", fixes=ALL, upstreams=("verl",), chosen=chosen)
    assert of("--source", "tree", "--upstream", "verl") == expected


def test_fixes_are_in_the_catalogs_order_whatever_the_options_order() -> None:
    first, second = ALL[:2]
    assert of("--fix", second, "--fix", first).fixes == (first, second)
    assert of("--skip", first).fixes == ALL[1:]
    assert of("--fix", first, "--fix", second, "--skip", first).fixes == (second,)
    assert selection(vars(parse(["matrix", "--skip", first]))).fixes == ALL[1:]
    words = ("--skip", ALL[2], "--fix", second, "--require", first, "--fix", first)
    assert [word for pair in of(*words).chosen for word in pair] == [*words[2:4], *words[6:], *words[:2], *words[4:6]]


@pytest.mark.parametrize(
    ("words", "fixes"),
    [
        ("--kind hang", "0 1 2 3"),
        ("--kind abort", "0 3"),
        ("--kind wrong-values", "3"),
        ("--kind wrong-values --kind abort", "0 3"),
        ("--kind abort --skip 3", "0"),
        ("--kind abort --fix 0 --fix 1", "0"),
        ("--kind abort --require 1", "0 1 3"),  # a required fix is judged
        ("--kind wrong-values --fix 1 --require 2", "2"),
    ],
)
def test_a_kind_narrows_what_is_chosen(words: str, fixes: str) -> None:
    words, fixes = (re.sub(r"\b\d\b", lambda found: ALL[int(found[0])], text) for text in (words, fixes))
    found = of(*words.split())
    assert found.fixes == tuple(fixes.split())
    assert set(found.chosen) == {*zip(words.split()[::2], words.split()[1::2])}, "suggested commands carry it"


def test_a_kind_that_no_named_fix_has_is_an_error_that_says_which_they_have(tmp_path: Path) -> None:
    for command in (["check"], ["apply"], ["diff"], ["overlay", "out"], ["wheel", "a.whl", "-o", "out"]):
        ran = cli.called(*command, "--fix", "mtp-cp-deadlock", "--kind", "abort", "--kind", "wrong-values")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("error[unknown-fix]: none of the named fixes is of kind abort or wrong-values\n")
        assert "hint: mtp-cp-deadlock: hang\n" in ran.err
        ran = cli.called(*command, "--kind", "hung")
        assert (ran.code, ran.out) == (2, "")
        assert "'hung'; did you mean hang? (choose from hang, abort, wrong-values)" in ran.err


def test_a_token_counts_once_and_its_variable_where_none_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (f"{str(number) * 16}-12-{'a' * 16}" for number in (1, 2))
    token = Token("1" * 16, 12, "a" * 16).mixed()
    assert of("--accept", one, "--accept", one).accepted == (token,)
    for arguments, variable, accepted in (
        (["check"], f"{one}, {two}", [one, two]), (["diff", "--accept", two], one, [two]), (["check"], "", []),
    ):  # fmt: skip
        given = vars(parse(arguments))
        fill_in(given, {"UNHANG_ACCEPT": variable})
        found = selection(given)
        assert [str(token) for token in found.accepted] == accepted
        assert found.chosen == tuple(("--accept", text) for text in accepted), "suggested commands carry them"
    assert capsys.readouterr().err == f"note: UNHANG_ACCEPT is set: --accept {one} --accept {two}\n"
    given = vars(parse(["revert"]))
    fill_in(given, {"UNHANG_ACCEPT": "yes"})
    assert "accept" not in given, "it accepts nothing"


def test_a_required_fix_is_included_although_another_is_named_and_may_not_be_skipped() -> None:
    first, second = ALL[:2]
    wanted = of("--fix", second, "--require", first)
    assert (wanted.fixes, wanted.required) == ((first, second), (first,))
    for command in ("check", "apply"):
        ran = cli.called(command, "--skip", first, "--require", first)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith(f"error[bad-option]: {first} is both required and skipped\n")


@pytest.mark.parametrize("option", ["fix", "skip", "require"])
def test_an_unknown_fix_is_refused_and_the_nearest_is_named(option: str) -> None:
    with pytest.raises(UnhangError) as caught:
        of(f"--{option}", "mtp")
    assert (caught.value.code, caught.value.message) == ("unknown-fix", "there is no fix 'mtp'")
    assert "did you mean mtp-cp-deadlock?" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("arguments", "skip", "require", "left_out", "required"),
    [
        ("check", "", " , ", "", ""),
        ("check", "0", "1", "0", "1"),
        ("check", "0, 1 2", "3", "0 1 2", "3"),
        ("check", "0,1", "0", "1", "0"),  # as with the options: a required fix is judged
        ("check --skip 2 --require 3", "0", "1", "2", "3"),  # the command line wins, for each option
        ("check --skip 2", "0", "1", "2", "1"),
        ("check --skip 1", "", "1", "1", ""),
        ("check --fix 0 --fix 1", "0", "", "2 3", ""),
        ("check --fix 0", "1", "2", "1 3", "2"),
        ("diff", "0", "1", "0", ""),  # it has no --require
        ("revert", "0", "no-such-fix", "0", ""),
        ("matrix", "0", "1", "0", ""),
        ("wheel x -o out", "0", "1", "0", "1"),
        ("overlay out", "0", "1", "0", "1"),
        ("prove", "no-such-fix", "no-such-fix", "", ""),
    ],
)
def test_variables_stand_for_options_that_are_not_given(
    arguments: str, skip: str, require: str, left_out: str, required: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def named(text: str) -> str:  # 0 is the first fix
        return re.sub(r"\b\d\b", lambda found: ALL[int(found[0])], text)

    given = vars(parse(named(arguments).split()))
    before = given.copy()
    fill_in(given, {"UNHANG_SKIP": named(skip), "UNHANG_REQUIRE": named(require)})
    found = selection(given)
    assert set(ALL) - set(found.fixes) == set(named(left_out).split())
    assert found.required == tuple(named(required).split())
    assert {("--require", name) for name in found.required} <= set(found.chosen), "suggested commands carry them"
    counted = sorted(name for name in given if given[name] != before[name])
    err = capsys.readouterr().err.splitlines()
    warnings, notes = ([line for line in err if line.startswith("warning: ") is it] for it in (True, False))
    lost = [name for name in re.findall(r"--skip (\S+)", named(arguments)) if name in named(require).split()]
    assert warnings == [f"warning: UNHANG_REQUIRE requires {name}, but --skip {name} leaves it out" for name in lost]
    assert [note.split(": --")[0] for note in sorted(notes)] == [
        f"note: UNHANG_{name.upper()} is set" for name in counted
    ], "it is said when a variable counts"


@pytest.mark.parametrize("variable", ["UNHANG_SKIP", "UNHANG_REQUIRE"])
def test_an_unknown_fix_in_a_variable_names_the_variable(variable: str, tmp_path: Path) -> None:
    ran = cli.called("apply", "--target", tmp_path, env={variable: "empty-expert-hang,sft"})
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(
        f"error[unknown-fix]: {variable}: there is no fix 'sft'\n  hint: did you mean sft-packed-"
    )


def test_a_variable_decides_the_exit_code_as_its_option_does(pristine: Path) -> None:
    given = cli.called("check", "--target", pristine, "--skip", "mtp-cp-deadlock", "--output-format", "json")
    ran = cli.called("check", "--target", pristine, "--output-format", "json", env={"UNHANG_SKIP": "mtp-cp-deadlock"})
    assert (ran.code, ran.out) == (given.code, given.out)
    ran = cli.called("check", "--target", pristine, "-q", "--allow-none", env={"UNHANG_REQUIRE": "expert-dp-warmup"})
    assert "required fix not in place: expert-dp-warmup" in ran.err
    assert "UNHANG_REQUIRE" not in ran.err, "-q leaves notes out"
    (tmp := pristine / ".env").write_text("UNHANG_SKIP=mtp-cp-deadlock\n")
    assert cli.unhang("check", "--target", pristine, cwd=pristine).code == 1, "never a file of the workspace"
    tmp.unlink()

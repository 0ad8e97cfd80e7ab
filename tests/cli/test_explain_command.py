"""`unhang explain NAME`: the page of a fix, and what the matrix says about it; an error's cause and cure."""

import re
import shlex

import pytest

from support import checkout, cli, ptys
from unhang.cli.arguments import parse
from unhang.cli.error_codes import causes, codes, words
from unhang.diagnose.known import ANSWERS
from unhang.diagnose.phrases import CODES
from unhang.job import strikes
from unhang.judge import decide, nearest, shows
from unhang.prove import answers, cases, host
from unhang.records import KINDS
from unhang.shapes import catalog
from unhang.tell import rows

DRAWN = "\n\n## What its proof recorded\n"
DOCS = checkout.REPOSITORY / "docs" / "json.md"


def undrawn(page: str) -> list[str]:
    """Return the words of a page without its drawing, which another width changes."""
    head, _, rest = page.replace("\r\n", "\n").partition(DRAWN)
    return [*head.split(), *rest.partition("\n\n## ")[2].split()]


@pytest.mark.parametrize("more", [[], ["-v"]])
@pytest.mark.parametrize(("columns", "above"), [(50, 40), (130, 120)])
def test_a_terminal_gets_the_page_at_its_width(columns: int, above: int, more: list[str]) -> None:
    piped = cli.called("explain", "expert-dp-warmup", *more)
    code, shown = ptys.unhang("explain", "expert-dp-warmup", *more, columns=columns)
    assert (code, undrawn(shown)) == (piped.code, undrawn(piped.out))
    prose = [line for line in shown.splitlines() if not line.startswith(("  unhang ", "| "))]  # a command stays whole
    assert above < max(map(len, prose)) <= columns


@pytest.mark.parametrize("words", ["reduce_loss_in_tracker", "REDUCE_loss", "loss first batch"])
def test_a_word_of_the_symptom_finds_the_page(words: str) -> None:
    assert cli.called("explain", words) == cli.unhang("explain", "mtp-cp-deadlock")


def test_the_drawing_stands_before_the_evidence() -> None:
    page = cli.called("explain", "-v", "mtp-cp-deadlock").out
    shown, evidence, *_ = page.partition(DRAWN)[2].split("\n\n## ")
    assert evidence.startswith("Evidence\n")
    assert shown.splitlines()[2:5] == [
        "Before: hangs. Rank 0 reduces the loss over both context-parallel ranks. Rank 1",
        "   has left the step without it.",
        "  rank 0    [A ......... waits",
    ]


def test_a_word_of_several_symptoms_gives_the_list_of_them() -> None:
    ran = cli.called("explain", "MoE")
    assert (ran.code, ran.out) == (0, cli.called("list", "MoE").out)
    assert [line.split()[0] for line in ran.out.splitlines()[:4:2]] == ["empty-expert-hang", "expert-dp-warmup"]
    assert ran.err == "2 fixes have 'MoE' in their symptom; `unhang explain ID` prints the page of one\n"


def test_an_error_code_has_its_cause_and_cure() -> None:
    ran = cli.called("explain", "no-locks")
    cause, cure = codes()["no-locks"]
    assert (ran.code, ran.out.split()) == (0, f"# no-locks ## Cause {cause} ## Cure {cure}".split())
    assert max(map(len, ran.out.splitlines())) <= 80
    code, shown = ptys.unhang("explain", "no-locks", columns=50)
    assert (code, shown.split()) == (0, ran.out.split())
    assert max(map(len, shown.splitlines())) <= 50


EFFECTS = catalog.manifest_schema()["properties"]["leave-out"]["items"]["properties"]["effect"]["enum"]
BY_CONSTANTS = {
    "verdicts": decide.URGENCY,
    "what stands for them in a row": tuple(rows.MARKS),
    "kinds": KINDS,
    "grades": tuple(re.findall(r"([\w-]+): ", catalog.GRADES)),
    "states of known shapes": (
        "affected",
        "fixed",
        decide.NO_REWRITE,
        decide.OURS,
        decide.REPAIRED,
        decide.RIGHT,
        decide.WRONG,
    ),
    "lines that differ": (nearest.ADDED, nearest.CHANGED, nearest.MISSING, nearest.MOVED),
    "what a fix is to a job": (strikes.STRIKES, strikes.CANNOT, strikes.UNKNOWN),
    "what a fix would do to it": tuple(EFFECTS),
    "answers of diagnose": ANSWERS,
    "causes": tuple(CODES),
    "sides of a proof": (host.UNTOUCHED, host.PATCHED),
    "ends of a side": (cases.PASSED, cases.HUNG, cases.CRASHED, cases.DIFFERS, cases.BROKEN, cases.MISMATCH),
    "answers of prove": tuple(answers.COLOURS),
    "what a run shows": (shows.DEFECT, shows.NO_DEFECT, shows.NOT_RUN),
}
"""Words that reports print, from where the code has them."""
BY_HAND = {
    "of ranks": "waiting failing elsewhere late disagrees deadlocked stopped gone suspect process missing",
    "of the table of ranks": "completed enqueued rank group",
    "of files": "unread partly unranked stale",
    "of a row": "settled leave-out companion assumes changes-numbers nearest blocked note help",
    "of several words": "only with|leave out|changes numbers|would apply",
    "of a report": "environment digest token receipt overlay unmet warning error hint code pack installation",
    "of the tables": "grade kind verdict release nightly yanked matrix shape target function upstream root anchor",
    "of a proof": "case control topology stand-in status",
}
WORDS = {word for many in BY_CONSTANTS.values() for word in many} | {
    word for many in BY_HAND.values() for word in many.split("|" if "|" in many else " ")
}


@pytest.mark.parametrize("word", sorted(WORDS))
def test_each_word_of_a_report_opens_its_own_short_text(word: str) -> None:
    name = word.replace(" ", "-")
    for typed in (word, name.capitalize()):
        ran = cli.called("explain", typed)
        assert (ran.code, ran.out.split("\n\n")[0]) == (0, f"# {name}")
        assert max(map(len, ran.out.splitlines())) <= 80
    text = causes().get(name) or words()[name]
    assert ran.out.split() == f"# {name} {text}".split()
    assert name in causes() or len(text.split()) < 90
    assert cli.called_with_all("explain", word) == ran, "whatever fixes have the word in their symptom"


def test_a_word_that_is_part_of_others_opens_none_of_them() -> None:
    """`grade` once opened the page of a fix whose symptom has `upgrade`."""
    ran = cli.called_with_all("explain", "pgrad")
    assert (ran.code, ran.out) == (2, "")
    assert "did you mean" in ran.err or "`unhang list` shows all fixes" in ran.err


def test_each_code_of_a_verdict_is_explained_and_each_command_of_a_word_is_one() -> None:
    (table,) = re.findall(r"\n\| code \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", DOCS.read_text(encoding="utf-8"))
    documented = set(re.findall(r"`([a-z-]+)`", " ".join(row.split("|")[1] for row in table.splitlines())))
    assert len(documented) > 12
    assert documented <= {*words(), *codes()}
    assert list(words()) == sorted(words())
    for text in words().values():
        for command in re.findall(r"`unhang ([a-z]+ [^`]*)`", text):
            parse(shlex.split(re.sub(r"\b(ID|WORD|DIR|TOKEN)\b", "x", command).replace("DIGEST", "0" * 16)))


def test_json_has_the_page_and_for_a_fix_what_a_program_wants_of_it() -> None:
    document = cli.called("explain", "mtp-cp-deadlock", "--output-format", "json").json
    assert (document["schema"], document["kind"], document["name"]) == (1, "fix", "mtp-cp-deadlock")
    assert document["page"].rstrip() == cli.called("explain", "-v", "mtp-cp-deadlock").out.rstrip()
    assert document["short"].rstrip() == cli.called("explain", "mtp-cp-deadlock").out.rstrip()
    assert document["when"] == catalog.fix("mtp-cp-deadlock").when
    (row,) = cli.called("list", "reduce_loss", "--output-format", "json").json["fixes"]
    assert row == {"fix": "mtp-cp-deadlock", **{key: document[key] for key in row if key != "fix"}}
    for name, kind in ("drifted", "word"), ("no-locks", "error"):
        found = cli.called("explain", name, "--output-format", "json").json
        assert (found["kind"], found["name"], found["page"].splitlines()[0]) == (kind, name, f"# {name}")
    several = cli.called("explain", "MoE", "--output-format", "json")
    assert [fix["fix"] for fix in several.json["fixes"]] == ["empty-expert-hang", "expert-dp-warmup"]
    assert several.err == ""


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("mtp-cp-deadlok", "mtp-cp-deadlock"), ("not-writeable", "not-writable"), ("drifte", "drifted")],
)
def test_a_mistyped_name_is_an_error_that_names_the_nearest(typed: str, meant: str) -> None:
    ran = cli.called("explain", typed)
    assert (ran.code, ran.out) == (2, "")
    assert f"did you mean {meant}?" in ran.err


def test_a_line_of_a_log_is_for_diagnose() -> None:
    ran = cli.called("explain", "Watchdog caught collective operation timeout")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "# never-arrived")
    assert ran.err == "`unhang diagnose FILE` reads a log\n"
    assert ran == cli.called("explain", *"Watchdog caught collective operation timeout".split()), "without quotes, too"
    assert "diagnose" not in cli.called("explain", "xyzzy").err


def test_the_whole_page_is_that_of_the_fix_with_what_manifest_and_matrix_have() -> None:
    text = cli.called("explain", "-v", "mtp-cp-deadlock").out
    page, _, section = text.partition("\n\n## In the matrix\n")
    head, _, rest = page.partition(DRAWN)
    page = f"{head}\n\n## {rest.partition('## ')[2]}"
    when = catalog.fix("mtp-cp-deadlock").when
    section_of = page.partition("\n## Who is hit\n")[2]
    first, _, after = section_of.partition("\n\n")
    assert " ".join(first.split()) == f"{when[0].upper()}{when[1:]}."
    page = page.replace(section_of, after)
    for more in (
        "Kind: hang.\n\n",
        "\n\n## Commands\n- `unhang check --fix mtp-cp-deadlock`: is it needed here?\n"
        "- `unhang apply --fix mtp-cp-deadlock`: on every node; restart the job",
        "\n\n## What the rewrite assumes\nany backend and device; megatron-core's parallel state, as `mpu`",
    ):
        assert more in page
        page = page.replace(more, "", 1)
    assert page == catalog.page("mtp-cp-deadlock").rstrip()
    assert "0.7.1" in section
    assert "It can be dropped with verl 0.8.0 and later" in section
    whole = cli.called("explain", "-v", "expert-dp-warmup").out
    assert "It cannot be dropped yet: the newest release of ms-swift" in whole

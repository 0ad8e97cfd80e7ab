"""What `unhang diagnose` prints: ranks as people write them, text, JSON and annotations, with nothing unprintable."""

from __future__ import annotations

import json

import pytest

from support.hung_jobs import C10D as CALL
from support.hung_jobs import job as hung_job
from support.hung_jobs import rank
from unhang import __version__
from unhang.diagnose import facts, report
from unhang.diagnose.evidence import Group, Job, Message, Operation, Rank, Unread, span
from unhang.diagnose.fixes import Standing
from unhang.diagnose.known import ANSWERS, Answer, Diagnosis
from unhang.diagnose.report import Report
from unhang.diagnose.where import Place
from unhang.diagnose.who import Who
from unhang.records import Environment, Request

MTP = "mtp-cp-deadlock"
SITE = Request(target="/site")
HERE = Environment(None, "/site", "--target")
UNREAD = Unread("cut", "it breaks off", True), Unread("x", "no", False)
JOB = Job({rank: Rank(rank) for rank in (0, 1, 2, 4)}, {}, 8, 6, UNREAD, ("stack.txt",))
KNOWN = Answer(
    "known", MTP, "One rank waits alone.",
    (Place((0,), "waiting in all_reduce 3", ("rank_0: entry 7",)), Place((1, 2, 4), "elsewhere", ())),
)  # fmt: skip
NO_ONE = Who("", {})
ENDED = "next: see in its logs whether it has failed: add them, and `unhang diagnose` names who failed first"
NOBODY = "no rank is suspect: the files show none that holds up the others"
NEEDED = Standing("verl", "0.7.1", "/site", "needed", "", "run: unhang apply --target /site --fix mtp-cp-deadlock")


def made(
    *answers: Answer, job: Job = JOB, environment: Environment | None = HERE, who: Who = NO_ONE, **standings: Standing
) -> Report:
    found = Diagnosis(facts.of(job), who, ())
    return Report(found, answers, environment, {MTP: tuple(standings.values())}, SITE)


def said(what: Report) -> str:
    """Return the text, without what to do next where no fix is known."""
    return report.text(what, colour=False).partition("\n\nnext:")[0].partition("\n\nif the job still")[0]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([5, 2, 3, 4, 0], "0, 2-5"),
        ([0, 1], "0-1"),
        (range(0, 16, 2), "0, 2, 4, 6, 8, 10, 12, 14"),
        (range(0, 1024, 2), "0, 2, 4, 6, 8, 10, 12, ... 1022 (512 ranks)"),
        (range(1024), "0-1023"),
    ],
)
def test_ranks_are_written_as_runs(ranks: list[int], text: str) -> None:
    assert span(ranks) == text


@pytest.mark.parametrize(
    ("ranks", "spoken", "size", "line"),
    [
        ((0, 1, 2, 4), (), 8, "4 of 8 ranks; nothing of ranks 3, 5-7"),
        ((0,), (), 2, "1 of 2 ranks; nothing of rank 1"),
        ((0, 1), (), 2, "2 of 2 ranks"),
        ((0, 7), (), None, "2 ranks"),
        ((0, 1), (2,), 5, "2 of 5 ranks; nothing of ranks 3-4; of rank 2 only lines without an error or a collective"),
    ],
)
def test_a_line_says_of_which_ranks_there_is_nothing(
    ranks: tuple[int, ...], spoken: tuple[int, ...], size: int | None, line: str
) -> None:
    job = JOB._replace(ranks={rank: Rank(rank) for rank in ranks}, size=size, spoken=frozenset(spoken))
    assert said(made(job=job, environment=None)) == f"{NOBODY}\n\nread 6 files: {line}"


def test_files_that_tell_of_no_rank_are_no_proof_that_none_is_suspect() -> None:
    nothing = JOB._replace(ranks={}, unranked=())
    for job, begins in (
        (nothing, "no file tells of a rank: it reads "),
        (JOB._replace(ranks={}), "no file says which rank it tells of: put the rank into its name"),
        (nothing._replace(spoken=frozenset({3})), NOBODY),
    ):
        assert report.text(made(job=job, environment=None), colour=False).startswith(begins)


def test_an_error_after_which_a_rank_went_on_is_told_and_makes_it_no_suspect() -> None:
    group = Group("0", "default_pg", (0, 1))
    ranks = {n: Rank(n, (Operation(n, group, 3, "all_reduce"),), recorded=True) for n in (0, 1)}
    ranks[1] = ranks[1]._replace(messages=(Message("ValueError: retried", "log:9"),))
    found = report.text(made(job=Job(ranks, {"0": group}, 2, 2)), colour=False).splitlines()
    assert found[:2] == [NOBODY, "rank 1: it logged an error, and went on to wait: ValueError: retried (log:9)"]


def test_a_known_one_is_followed_by_who_waits_there_the_command_and_no_further_advice() -> None:
    lines = report.text(made(KNOWN, here=NEEDED), colour=False).splitlines()
    assert lines[3:] == [
        "environment: /site (found by --target)",
        "",
        "known: mtp-cp-deadlock (cure)",
        "  verl: multi-token-prediction loss hangs with context parallelism",
        "  One rank waits alone.",
        "    rank 0: waiting in all_reduce 3",
        "      rank_0: entry 7",
        "    ranks 1-2, 4: elsewhere",
        "    nothing came from ranks 3, 5-7: this is so if these do not wait there too",
        "  more about it: unhang explain mtp-cp-deadlock",
        "  needed on verl 0.7.1 in /site; run: unhang apply --target /site --fix mtp-cp-deadlock",
        "  then start the job again",
    ]


def test_what_explains_the_hang_first_stands_above_the_same_command() -> None:
    also = KNOWN._replace(answer="also", before=("rank 5 failed by itself: no",))
    lines = report.text(made(also, here=NEEDED), colour=False).splitlines()
    at = lines.index("also: mtp-cp-deadlock (cure)")
    assert lines[at + 3 : at + 5] == [
        "  The code here has this defect too, but something else explains the hang first:",
        "    rank 5 failed by itself: no",
    ]
    assert lines[-1].endswith("run: unhang apply --target /site --fix mtp-cp-deadlock")


@pytest.mark.parametrize(("environment", "begins"), [(HERE, "there is no verl here: in the"), (None, "in the")])
def test_a_possible_one_says_what_decides(environment: Environment | None, begins: str) -> None:
    possible = Answer("possible", MTP, "It may be.", (), (), "is it?")
    what = made(possible, environment=environment)
    assert (
        f"  {begins} job's environment, run: unhang check --fix {MTP}\n  what decides: is it? It takes multi-"
        in said(what)
    )
    assert json.loads(report.document(what))["answers"][0]["command"] is None


def test_a_copy_without_the_defect_is_one_line() -> None:
    fixed = NEEDED._replace(verdict="fixed-upstream", hint="it is another copy")
    text = said(made(Answer("not-here", MTP, "So."), here=fixed))
    assert text.splitlines()[-1] == (
        "not mtp-cp-deadlock, whose function is on the ranks' way: fixed-upstream on verl 0.7.1 in /site; it is "
        "another copy"
    )


def test_where_all_ranks_are_is_shown_the_largest_places_first_and_not_all_of_many() -> None:
    places = tuple(Place((number,), f"in f{number}", (f"stack: f{number} (a.py:1)",)) for number in range(12))
    what = made()
    lines = said(what._replace(diagnosis=what.diagnosis._replace(places=places))).splitlines()
    at = lines.index("where the ranks are:")
    assert lines[at + 1 : at + 3] == ["  rank 0: in f0", "    stack: f0 (a.py:1)"]
    assert lines[-1] == "  and 4 more places, which --output-format json names"


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([rank(at=(CALL,)), None], "next: take the stacks of rank 1 too: nothing came from there"),
        ([rank(at=(CALL,))] * 2, report.MORE),
        ([rank(at=(CALL,))._replace(process="gone")] * 2, ENDED),
    ],
)
def test_what_to_do_next_is_of_what_lacks(ranks: list[Rank | None], said: str) -> None:
    what = made(job=hung_job(ranks))
    text = report.text(what, colour=False)
    assert text.splitlines()[-1] == said
    assert text.startswith("no rank is suspect: all processes that were seen have ended") is (said == ENDED)


def test_the_text_fits_the_width_and_only_its_answers_are_coloured() -> None:
    long = KNOWN._replace(summary="word " * 40)
    what = made(long, long._replace(answer="also"), here=NEEDED)
    plain = report.text(what, colour=False, width=80)
    assert 60 < max(map(len, plain.splitlines())) <= 80
    assert plain.split() == report.text(what, colour=False).split()
    coloured = report.text(what, colour=True, width=80)
    assert [line.partition("\x1b[")[2][2:] for line in coloured.splitlines() if "\x1b" in line] == [
        "mknown\x1b[0m: mtp-cp-deadlock (cure)",
        "malso\x1b[0m: mtp-cp-deadlock (cure)",
    ]


def test_the_json_document_has_the_documented_form() -> None:
    what = made(KNOWN, here=NEEDED)
    what = what._replace(diagnosis=what.diagnosis._replace(places=(Place((0, 2), "in f", ("stack: f (a.py:1)",)),)))
    assert json.loads(report.document(what)) == {
        "schema": 2,
        "unhang": __version__,
        "suspects": [],
        "why": {},
        "processes": [],
        "causes": [],
        "environment": {"python": None, "prefix": "/site", "found_by": "--target"},
        "job": {
            "files": 6,
            "size": 8,
            "ranks": [0, 1, 2, 4],
            "unread": [
                {"file": "cut", "why": "it breaks off", "partly": True},
                {"file": "x", "why": "no", "partly": False},
            ],
            "unranked": ["stack.txt"],
            "errors": [],
        },
        "where": [{"ranks": [0, 2], "processes": [], "doing": "in f", "evidence": ["stack: f (a.py:1)"]}],
        "answers": [
            {
                "answer": "known",
                "fix": MTP,
                "grade": "cure",
                "kinds": ["hang"],
                "changes_numbers": False,
                "summary": "One rank waits alone.",
                "places": [
                    {"processes": [], "ranks": [*one.ranks], "doing": one.doing, "evidence": [*one.evidence]}
                    for one in KNOWN.places
                ],
                "before": [],
                "question": None,
                "command": "unhang apply --target /site --fix mtp-cp-deadlock",
                "standings": [NEEDED._asdict()],
            }
        ],
    }
    assert json.loads(report.document(made()._replace(environment=None)))["environment"] is None


def test_the_suspects_come_first_in_every_form() -> None:
    why = {1: "it failed by itself: no", **dict.fromkeys((2, 4), "its device is stuck")}
    traceback = ("log:9", "  /a/train.py:12 in step")
    what = made(KNOWN, who=Who("failed", why, traceback), here=NEEDED)
    assert report.text(what, colour=False).startswith(
        "rank 1: it failed by itself: no\neach of ranks 2, 4: its device is stuck\n"
        "  log:9\n    /a/train.py:12 in step\n\nread "
    )
    document = json.loads(report.document(what))
    assert [*document][2:4] == ["suspects", "why"]
    assert (document["suspects"], document["why"]) == ([1, 2, 4], {str(rank): text for rank, text in why.items()})
    assert report.github(what).startswith(
        "::error title=unhang suspects::rank 1: it failed by itself: no%0Aeach of ranks 2, 4"
    )


def test_many_suspects_of_many_kinds_fill_no_screen() -> None:
    lines = report.text(made(who=Who("device", {n: f"behind by {n}" for n in range(1024)})), colour=False)
    assert lines.splitlines()[7:9] == ["rank 7: behind by 7", "and 1016 more ranks, which --output-format json names"]


def test_github_gets_an_annotation_for_each_answer_and_each_file_that_was_not_read() -> None:
    answers = [KNOWN, *(Answer(name, MTP, "100 %\nof it") for name in ANSWERS[1:])]
    lines = report.github(made(*answers, here=NEEDED)).splitlines()
    heads = [line.partition("::")[2].partition("::") for line in lines]
    assert [head for head, _, _ in heads] == [
        "error title=unhang known%3A mtp-cp-deadlock (cure)",
        "warning title=unhang also%3A mtp-cp-deadlock (cure)",
        "warning title=unhang possible%3A mtp-cp-deadlock (cure)",
        "notice title=unhang not mtp-cp-deadlock%2C whose function is on the ranks' way%3A needed on verl 0.7.1 in "
        "/site; run%3A unhang apply --target /site --fix mtp-cp-deadlock",
        *["warning title=unhang"] * 3,
    ]
    assert "%0A    rank 0: waiting in all_reduce 3%0A      rank_0: entry 7%0A" in heads[0][2]
    assert "100 %25" in heads[1][2]
    assert [text for _, _, text in heads[4:]] == report.warnings(JOB)


READ_IN_PART, NOT_READ = "cut: read in part: it breaks off", "x: no"
NO_RANK = (
    "stack.txt: it does not say its rank. Put the rank into its name, as in rank3.txt, or above what each process "
    "says, as in `rank 3:`"
)
SAME = [Unread(f"rank{n}.txt", "spied/* is read for the same ranks", False) for n in range(6)]
MANY = [Unread(f"rank{number}.err", "it is empty", False) for number in range(1024)]


@pytest.mark.parametrize(
    ("unread", "unranked", "lines"),
    [
        (UNREAD, ("stack.txt",), [READ_IN_PART, NOT_READ, NO_RANK]),
        # that several formats tell the same is said once
        ((*SAME, *UNREAD), (), [f"6 files, such as rank0.txt: {SAME[0].why}", READ_IN_PART, NOT_READ]),
        (SAME[:1], (), [f"rank0.txt: {SAME[0].why}"]),
        # of many files with one fault, some are named
        (
            (*MANY, *UNREAD), (),
            [
                *(f"rank{number}.err: it is empty" for number in range(8)),
                "1016 more files, which --output-format json names: it is empty", READ_IN_PART, NOT_READ,
            ],
        ),
    ],
)  # fmt: skip
def test_what_was_not_read_is_named_with_the_reason(
    unread: tuple[Unread, ...], unranked: tuple[str, ...], lines: list[str]
) -> None:
    assert report.warnings(JOB._replace(unread=(*unread,), unranked=unranked)) == lines


def test_what_a_dump_says_reaches_the_terminal_without_control_characters() -> None:
    evil = "\x1b[2J\r::error::\n\u202e"
    answer = Answer("possible", MTP, evil, (Place((0,), evil, (evil,)),), (evil,))
    for colour in False, True:
        text = report.text(made(answer), colour=colour).replace("\x1b[33mpossible\x1b[0m", "")
        assert all(character.isprintable() or character == "\n" for character in text)
        assert text.count("\\x1b[2J\\r::error::\\n\\u202e") == 4
    assert len(report.github(made(answer)).splitlines()) == 1 + len(report.warnings(JOB))

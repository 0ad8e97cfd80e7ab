"""Suggested commands repeat what was asked for, quoted for the shell, and an undo takes back no more than was done."""

from __future__ import annotations

import shlex

import pytest

from unhang import suggest
from unhang.errors import UnhangError
from unhang.records import Request

SITE = Request(target="site")
ACCEPTING = SITE._replace(chosen=(("--skip", "a"), ("--accept", "1-2-3")))
IN_ML = """--python py --script 'ml/it'"'"'s.py'"""
NARROW = Request(
    python="py", script="ml/it's.py", fixes=("a", "b"), required=("b",), upstreams=("verl",),
    chosen=(("--fix", "a"), ("--require", "b"), ("--upstream", "verl")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "hint", "whole"),
    [
        (Request(), "unhang apply", "unhang apply"),
        (SITE, "unhang apply", "unhang apply --target site"),
        (SITE._replace(script="s.py"), "`unhang check`", "`unhang check --target site --script s.py`"),
        (Request(source="-odd"), "run `unhang revert --force`, or", "run `unhang revert --source=-odd --force`, or"),
        (SITE._replace(python="py"), "unhang apply", "unhang apply --target site"),
        (NARROW, "unhang apply", f"unhang apply {IN_ML} --fix a --require b --upstream verl"),
        (NARROW, "unhang revert", f"unhang revert {IN_ML} --fix a --fix b --upstream verl"),
        (NARROW, "unhang revert --fix c", f"unhang revert {IN_ML} --upstream verl --fix c"),
        (SITE._replace(required=("b",), chosen=(("--require", "b"),)), "unhang revert", "unhang revert --target site"),
        (SITE._replace(writer=("overlay", "a dir")), "unhang apply", "unhang overlay 'a dir' --target site"),
        (SITE._replace(writer=("overlay", "dir")), "unhang revert", "unhang revert --target site"),
        (
            SITE._replace(writer=("wheel", "verl==0.7.1", "-o", "out"), chosen=(("--skip", "a"),)),
            "reinstall it and run `unhang apply --fix b`, then `unhang check`",
            "reinstall it and run `unhang wheel 'verl==0.7.1' -o out --fix b`, "
            "then `unhang wheel 'verl==0.7.1' -o out --skip a`",
        ),
        (
            Request(writer=("wheel", "x", "-o", "out")),
            "the token: `unhang diff --unknown --fix b`; or",
            "the token: unpack the wheel into a folder DIR, then unhang diff --unknown --fix b --target DIR; or",
        ),
        (ACCEPTING, "`unhang diff --unknown --fix b`", "`unhang diff --target site --accept 1-2-3 --unknown --fix b`"),
        (ACCEPTING, "unhang check", "unhang check --target site --skip a --accept 1-2-3"),
        (ACCEPTING, "unhang revert", "unhang revert --target site --skip a"),
        (SITE, "see `unhang explain a`; `unhang list` shows all", "see `unhang explain a`; `unhang list` shows all"),
        (SITE, "then run unhang apply", "then run unhang apply"),
    ],
)  # fmt: skip
def test_a_hint_gets_the_options_of_the_request(request_: Request, hint: str, whole: str) -> None:
    # Some versions of Python quote the equals sign, which the shell does not need.
    assert suggest.complete(hint, request_) == whole.replace("'verl==0.7.1'", shlex.quote("verl==0.7.1"))
    assert suggest.hinted(UnhangError("code", "", hint=hint), request_).hint == suggest.complete(hint, request_)


def test_whatever_the_path_holds_the_shell_gets_it_back() -> None:
    for path in ("a b", "it's", '"', "$HOME", "`id`", "a;b", "~", "*", "new\nline", "-x", "ä"):
        words = shlex.split(suggest.command("apply", Request(target=path, script=path)))
        given = [word for option in ("--target", "--script") for word in (option, path)]
        assert words[2:] == (given if path != "-x" else ["--target=-x", "--script=-x"])


ONE, OTHER, SWIFT = ("/r", "verl", "a"), ("/r", "verl", "b"), ("/r", "ms-swift", "a")
ELSEWHERE = ("/base", "verl", "a")
PLAIN = "unhang revert --python py"


@pytest.mark.parametrize(
    ("done", "before", "commands"),
    [
        ({ONE, OTHER}, set(), [PLAIN]),
        ({ONE}, {("/r", "verl", "not asked for")}, [PLAIN]),
        ({ONE}, {OTHER}, [f"{PLAIN} --upstream verl --fix a"]),
        ({ONE}, {SWIFT}, [f"{PLAIN} --upstream verl --fix a"]),
        ({ONE}, {ELSEWHERE}, ["unhang revert --target /r --upstream verl --fix a"]),
        (
            {SWIFT, OTHER},
            {ONE},
            [f"unhang revert --target /r --upstream {which}" for which in ("ms-swift --fix a", "verl --fix b")],
        ),
    ],
)  # fmt: skip
def test_the_undo_names_what_was_done_if_an_earlier_run_did_more(
    done: set[tuple[str, str, str]], before: set[tuple[str, str, str]], commands: list[str]
) -> None:
    assert suggest.undo(Request(python="py", fixes=("a", "b")), done, done | before) == commands

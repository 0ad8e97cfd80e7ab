"""Suggested commands repeat what was asked for, quoted for the shell, and an undo takes back no more than was done."""

import ast
import re
import shlex

import pytest

from support import rooms
from unhang import suggest
from unhang.errors import UnhangError
from unhang.records import Request
from unhang.suggest import Command, Hint

APPLY, CHECK, REVERT = map(Command, ("apply", "check", "revert"))
FORCED, DIFF = Command("revert", ("--force",)), Command("diff", ("--unknown", "--fix", "b"))
SITE = Request(target="site")
ACCEPTING = SITE._replace(chosen=(("--skip", "a"), ("--accept", "1-2-3")))
IN_ML = """--python py --script 'ml/it'"'"'s.py'"""
NARROW = Request(
    python="py", script="ml/it's.py", fixes=("a", "b"), required=("b",), upstreams=("verl",),
    chosen=(("--fix", "a"), ("--require", "b"), ("--upstream", "verl")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "parts", "whole"),
    [
        (Request(), (APPLY,), "unhang apply"),
        (SITE, (APPLY,), "unhang apply --target site"),
        (SITE._replace(script="s.py"), ("or ", CHECK), "or `unhang check --target site --script s.py`"),
        (Request(source="-odd"), ("run ", FORCED, ", or"), "run `unhang revert --source=-odd --force`, or"),
        (SITE._replace(python="py"), (APPLY,), "unhang apply --target site"),
        (NARROW, (APPLY,), f"unhang apply {IN_ML} --fix a --require b --upstream verl"),
        (NARROW, (REVERT,), f"unhang revert {IN_ML} --fix a --fix b --upstream verl"),
        (NARROW, (Command("revert", ("--fix", "c")),), f"unhang revert {IN_ML} --upstream verl --fix c"),
        (
            NARROW._replace(chosen=(("--kind", "hang"), ("--require", "b"))), (REVERT,),
            f"unhang revert {IN_ML} --fix a --fix b",
        ),
        (SITE._replace(chosen=(("--kind", "hang"),)), (REVERT,), "unhang revert --target site --kind hang"),
        (SITE._replace(required=("b",), chosen=(("--require", "b"),)), (REVERT,), "unhang revert --target site"),
        (SITE._replace(writer=("overlay", "a dir")), (APPLY,), "unhang overlay 'a dir' --target site"),
        (SITE._replace(writer=("overlay", "dir")), (REVERT,), "unhang revert --target site"),
        (
            SITE._replace(writer=("wheel", "verl==0.7.1", "-o", "out"), chosen=(("--skip", "a"),)),
            ("reinstall it and run ", Command("apply", ("--fix", "b")), ", then ", CHECK),
            "reinstall it and run `unhang wheel 'verl==0.7.1' -o out --fix b`, "
            "then `unhang wheel 'verl==0.7.1' -o out --skip a`",
        ),
        (
            Request(writer=("wheel", "x", "-o", "out")),
            ("the token: ", DIFF, "; or"),
            "the token: unpack the wheel into a folder DIR, then unhang diff --unknown --fix b --target DIR; or",
        ),
        (ACCEPTING, (DIFF,), "unhang diff --target site --accept 1-2-3 --unknown --fix b"),
        (ACCEPTING, (CHECK,), "unhang check --target site --skip a --accept 1-2-3"),
        (ACCEPTING, (REVERT,), "unhang revert --target site --skip a"),
        (SITE, (Hint("a ", CHECK), "; ", Hint(APPLY)), "a `unhang check --target site`; `unhang apply --target site`"),
        (SITE, ("a file named `unhang apply`",), "a file named `unhang apply`"),
        (SITE, (), ""),
    ],
)  # fmt: skip
def test_a_hint_gets_the_options_of_the_request(
    request_: Request, parts: tuple[str | Command, ...], whole: str
) -> None:
    hint = Hint(*parts)
    # Some versions of Python quote the equals sign, which the shell does not need.
    assert suggest.complete(hint, request_) == whole.replace("'verl==0.7.1'", shlex.quote("verl==0.7.1"))
    assert suggest.hinted(UnhangError("code", "", hint=hint), request_).hint == suggest.complete(hint, request_)


def test_without_a_request_a_hint_reads_as_it_is_and_it_is_completed_once() -> None:
    hint = Hint("to see it: ", DIFF, "; or ", CHECK)
    assert hint == "to see it: `unhang diff --unknown --fix b`; or `unhang check`"
    whole = suggest.complete(hint, SITE)
    assert suggest.complete(whole, SITE) == whole == suggest.complete(hint, SITE)


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


def test_below_the_commands_no_text_has_a_command_that_only_a_request_completes() -> None:
    """It would be suggested without the options that led to it. A note of the search is about no run in particular."""
    bare = re.compile(r"`unhang (apply|check|diff|revert)\b")
    for module, path in rooms.modules().items():
        if rooms.room(module) in ("judge", "rewrite", "store", "survey"):
            nodes = list(ast.walk(ast.parse(path.read_bytes())))
            docs = {node.value for node in nodes if isinstance(node, ast.Expr)}
            texts = [node.value for node in nodes if isinstance(node, ast.Constant) and node not in docs]
            found = [text for text in texts if isinstance(text, str) and bare.search(text)]
            assert found == [] or (module, len(found)) == ("unhang.survey.search", 1), (module, found)

"""A token names the rewrite of one unknown shape, before it is written and after, and nothing else."""

from pathlib import Path

import pytest

from support import gates
from support.gates import ONE, RUN
from unhang.judge import accept
from unhang.judge.decide import Verdict, decide
from unhang.judge.findings import Finding
from unhang.judge.observe import observe_bytes
from unhang.records import Token, paired
from unhang.shapes import catalog

EDITED = ONE.replace("return x", "return x + 1")
BEFORE, RESULT = gates.shape_of(EDITED), gates.shape_of(gates.gated(EDITED))
NOW = catalog.generation()
TOKEN, OTHER = Token(BEFORE, NOW, RESULT), "0" * 16


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gates.install(monkeypatch)


def finding(code: str, result: str | None = None) -> Finding:
    where, seen = gates.installation(Path("/site")), observe_bytes("/site/verl/one.py", code.encode(), "run", {})
    verdict = decide(RUN, where, seen, gates.shape_table(), gates.releases(), None)
    return Finding(where, RUN, seen, verdict, result=result)


@pytest.mark.parametrize(
    ("token", "unused"),
    [
        (TOKEN, ""),
        (TOKEN._replace(shape=OTHER), "no function that this run looks at has that shape, or that result"),
        (TOKEN._replace(result=OTHER), "the shape is here, but it is not rewritten to that result"),
        (TOKEN._replace(generation=NOW - 1), f"they are generation {NOW} now"),
    ],
)
def test_before_the_rewrite_shape_generation_and_planned_result_must_be_the_tokens(token: Token, unused: str) -> None:
    before = finding(EDITED, RESULT)
    (found,) = accept.named([before], [Token(OTHER, NOW, OTHER), token])
    hinted = before._replace(verdict=before.verdict._replace(hint="unhang apply"), accepted=True)
    assert found == (before if unused else hinted)
    assert not found.settled, "it is still to be written"
    sentences = accept.unused([token], [found])
    assert len(sentences) == bool(unused)
    assert all(str(token) in sentence and sentence.endswith(unused) for sentence in sentences)
    assert accept.named([finding(EDITED)], [token]) == [finding(EDITED)], "its rewrite is refused"
    found, _ = accept.named([before, before._replace(result=OTHER)], [token])
    assert found.verdict.hint == before.verdict.hint, "the fix goes in whole or not at all"


@pytest.mark.parametrize("token", [TOKEN, TOKEN._replace(shape=OTHER)])
def test_afterwards_the_result_and_the_generation_must_be(token: Token) -> None:
    """Of the shape before nothing is left in a wheel, an overlay or an image."""
    after = finding(gates.gated(EDITED))
    (found,) = accept.named([after], [token])
    assert found == after._replace(verdict=Verdict("drifted", "accepted", "accepted by a person"), accepted=True)
    assert (found.settled, accept.unused([token], [found])) == (True, [])
    (found,) = accept.named([after._replace(overlay="/o")], [token])
    assert found.verdict.detail == "in the overlay /o; accepted by a person"
    dated = after._replace(verdict=Verdict("drifted", "accepted", "accepted by a person on 2026-11-22", "a hint"))
    (found,) = accept.named([dated], [token])
    assert found.verdict == Verdict("drifted", "accepted", "accepted by a person on 2026-11-22")
    for old in token._replace(generation=NOW - 1), token._replace(result=OTHER):
        assert accept.named([after], [old]) == [after]
        assert len(accept.unused([old], [after])) == 1


def test_upstreams_own_fix_in_an_unknown_shape_is_accepted_as_it_is() -> None:
    seems = ONE.replace("    start()\n", "    start()\n    upstream_waits()\n", 1)
    shape = gates.shape_of(seems)
    before, token = finding(seems, shape), Token(shape, NOW, shape)
    (found,) = accept.named([before], [token])
    assert found.verdict == Verdict("drifted", "accepted", "accepted by a person, as it is")
    assert (found.settled, found.to_write, accept.unused([token], [found])) == (True, False, [])
    for wrong in token._replace(generation=NOW - 1), Token(BEFORE, NOW, BEFORE):
        assert accept.named([before], [wrong]) == [before]
        assert len(accept.unused([wrong], [before])) == 1
    assert accept.for_show([before]) == [before._replace(accepted=True)]
    for other in finding(EDITED, RESULT), finding(EDITED), finding(gates.gated(EDITED)):
        itself = Token(other.seen.shape or "", NOW, other.seen.shape or "")
        assert accept.named([other], [itself]) == [other], "nothing shows that it is fixed"
        assert len(accept.unused([itself], [other])) == 1


def test_a_token_names_the_unknown_function_that_the_target_depends_on_too(monkeypatch: pytest.MonkeyPatch) -> None:
    gates.install(monkeypatch, gates.shape_table(gates.AGREES))

    def beside(found: Finding, code: str) -> Finding:
        depends = observe_bytes("/site/verl/agree.py", code.encode(), "agree", {})
        return found._replace(target=found.target._replace(depends_on=gates.AGREE), depends=depends)

    edited, again = (gates.WRONG.replace("count if", f"count + {more} if") for more in (1, 2))
    before, after = gates.shape_of(ONE), gates.shape_of(gates.gated(ONE))
    helper = gates.shape_of(edited, "agree")
    token = Token(paired(before, helper), NOW, paired(after, helper))
    assert len({before, after, *token[::2]}) == 4
    for code, result in ((ONE, after), (gates.gated(ONE), None)):
        known = finding(code, result)
        (found,) = accept.named([beside(known, edited)], [token])
        assert (found.accepted, found.settled, accept.unused([token], [found])) == (True, result is None, [])
        for other, wrong in ((again, token), (edited, Token(before, NOW, after)), (gates.WRONG, token)):
            assert accept.named([beside(known, other)], [wrong]) == [beside(known, other)]


@pytest.mark.parametrize("code", [ONE, gates.gated(ONE), "x = 1\n"])
def test_what_is_on_record_or_absent_is_not_a_tokens_to_settle(code: str) -> None:
    known = finding(code)
    token = Token(OTHER, NOW, known.seen.shape or OTHER)
    assert accept.named([known], [token]) == [known]


def test_what_is_shown_are_the_fixes_that_an_unknown_shape_holds_back() -> None:
    unknown, refused, needed = finding(EDITED, RESULT), finding(EDITED), finding(ONE)
    alone = [unknown, needed._replace(target=needed.target._replace(fix="pause"))]
    assert accept.for_show(alone) == [unknown._replace(accepted=True)]
    assert accept.for_show([unknown, needed]) == [unknown._replace(accepted=True), needed], "whole or not at all"
    assert accept.for_show([refused]) == [refused], "it is named, with the reason"
    (written,) = accept.named([finding(gates.gated(EDITED))], [TOKEN])
    assert accept.for_show([written, needed]) == []

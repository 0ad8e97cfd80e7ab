"""Options become a request: places as given, fixes in the catalog's order, required fixes included."""

from __future__ import annotations

import pytest

from unhang.cli.arguments import parse
from unhang.cli.requests import fixes, request
from unhang.errors import UnhangError
from unhang.records import UPSTREAMS, Request
from unhang.shapes import catalog

ALL = tuple(catalog.fixes())


def of(*arguments: str) -> Request:
    return request(parse(["check", *arguments]))


def test_without_options_it_is_about_all_fixes_and_upstreams() -> None:
    assert of() == Request(fixes=ALL, upstreams=UPSTREAMS)


def test_the_places_are_as_given() -> None:
    assert of("--python", "py", "--script", "run.py") == Request("py", None, None, "run.py", ALL)
    assert of("--target", "site", "--allow-none") == Request(target="site", fixes=ALL, allow_none=True)
    assert of("--source", "tree", "--upstream", "verl") == Request(
        source="tree", fixes=ALL, upstreams=("verl",), chosen=(("--upstream", "verl"),)
    )


def test_fixes_are_in_the_catalogs_order_whatever_the_options_order() -> None:
    first, second = ALL[:2]
    assert of("--fix", second, "--fix", first).fixes == (first, second)
    assert of("--skip", first).fixes == ALL[1:]
    assert of("--fix", first, "--fix", second, "--skip", first).fixes == (second,)
    assert fixes(parse(["matrix", "--skip", first])) == ALL[1:]
    words = ("--skip", first, "--fix", second, "--require", first, "--fix", first)
    assert [word for pair in of(*words).chosen for word in pair] == [*words[2:4], *words[6:], *words[:2], *words[4:6]]


def test_a_required_fix_is_included_although_another_is_named_or_it_is_skipped() -> None:
    first, second = ALL[:2]
    for wanted in (of("--fix", second, "--require", first), of("--fix", second, "--skip", first, "--require", first)):
        assert (wanted.fixes, wanted.required) == ((first, second), (first,))


def test_a_command_without_require_requires_nothing() -> None:
    assert request(parse(["revert"])).required == ()


@pytest.mark.parametrize("option", ["--fix", "--skip", "--require"])
def test_an_unknown_fix_is_refused(option: str) -> None:
    with pytest.raises(UnhangError) as caught:
        of(option, "no-such-fix")
    assert caught.value.code == "unknown-fix"

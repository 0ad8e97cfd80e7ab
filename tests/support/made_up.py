"""Made-up fixes, releases and shapes. A shape is named after its state, so that a matrix is a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unhang.shapes.catalog import Fix, Release, Shape, ShapeTable, Target

STATES = ("affected", "fixed", "not-affected", "superseded", "ours")


def fix(name: str, *upstreams: str) -> Fix:
    """Return a fix with a target in each of these upstreams; an upstream that is named twice has two."""
    targets = (
        Target(name, upstream, f"{upstream}/{name}/{number}.py", "f") for number, upstream in enumerate(upstreams)
    )
    return Fix(name, f"the title of {name}", {}, tuple(targets), "")


def table(*fixes: Fix) -> ShapeTable:
    """Return a table with a shape of each state for each fix; any other word is a shape that is not on record."""
    return ShapeTable({(fix.id, "f", state): Shape(state, None, (), "") for fix in fixes for state in STATES}, {})


def releases(fixes: Sequence[Fix], **upstreams: Mapping[str, str]) -> dict[str, dict[str, Release]]:
    """Return releases by version: the shape of each target, in the fixes' order, `-` if the release lacks it.

    A version that ends in `!` is yanked.
    """
    made: dict[str, dict[str, Release]] = {}
    for upstream, versions in upstreams.items():
        places = [f"{to.file}::f" for fix in fixes for to in fix.targets if to.upstream == upstream]
        for text, words in versions.items():
            shapes = [None if word == "-" else word for word in words.split()]
            version = text.removesuffix("!")
            made.setdefault(upstream, {})[version] = Release(
                version, text.endswith("!"), dict(zip(places, shapes, strict=True))
            )
    return made

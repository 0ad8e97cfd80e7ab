"""Made-up fixes, releases and shapes: a shape is called by its state, so that a test says all of a matrix in a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unhang.shapes.catalog import Fix, Release, Shape, ShapeTable, Target

STATES = ("affected", "fixed", "not-affected", "superseded", "ours")


def fix(name: str, *upstreams: str) -> Fix:
    """A fix with a target in each of these upstreams; one that is named twice has two."""
    targets = (
        Target(name, upstream, f"{upstream}/{name}/{number}.py", "f") for number, upstream in enumerate(upstreams)
    )
    return Fix(name, f"the title of {name}", {}, tuple(targets), "")


def table(*fixes: Fix) -> ShapeTable:
    """A shape of each state for each fix; any other word is a shape that is not on record."""
    return ShapeTable({(fix.id, "f", state): Shape(state, None, (), "") for fix in fixes for state in STATES}, {})


def releases(fixes: Sequence[Fix], **upstreams: Mapping[str, str]) -> dict[str, dict[str, Release]]:
    """Releases by version: the shape of each target there, in the fixes' order, `-` where it is absent.

    A version that ends in `!` is yanked.
    """
    made: dict[str, dict[str, Release]] = {}
    for upstream, versions in upstreams.items():
        places = [f"{to.file}::f" for fix in fixes for to in fix.targets if to.upstream == upstream]
        for told, words in versions.items():
            shapes = [None if word == "-" else word for word in words.split()]
            version = told.removesuffix("!")
            made.setdefault(upstream, {})[version] = Release(
                version, told.endswith("!"), dict(zip(places, shapes, strict=True))
            )
    return made

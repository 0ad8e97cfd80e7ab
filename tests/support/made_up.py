"""Made-up fixes, releases and shapes: a shape is named after its state, so that a test writes a matrix in one line."""

from collections.abc import Mapping, Sequence

from unhang.shapes.catalog import Fix, Release, Shape, ShapeTable, Target

STATES = ("affected", "fixed", "not-affected", "ours", "right", "repaired", "wrong")


def fix(name: str, *upstreams: str, grade: str = "cure", changes_numbers: bool = False) -> Fix:
    """Return a fix with a target in each of these upstreams, and with two in one that is named twice."""
    targets = (
        Target(name, upstream, f"{upstream}/{name}/{number}.py", "f") for number, upstream in enumerate(upstreams)
    )
    return Fix(name, f"the title of {name}", grade, {}, tuple(targets), "", ("hang",), changes_numbers)


def table(*fixes: Fix) -> ShapeTable:
    """Return a table with a shape of each state for each fix; any other word is a shape that is not on record."""
    return ShapeTable({(fix.id, "f", state): Shape(state, None, (), "") for fix in fixes for state in STATES}, {})


def releases(fixes: Sequence[Fix], **upstreams: Mapping[str, str]) -> dict[str, dict[str, Release]]:
    """Return releases by upstream and version.

    The value of a version lists the shape of each target in the order of the fixes, `-` if it is absent. A version
    that ends in `!` is yanked.
    """
    made: dict[str, dict[str, Release]] = {}
    for upstream, versions in upstreams.items():
        places = [f"{to.file}::f" for fix in fixes for to in fix.targets if to.upstream == upstream]
        for key, words in versions.items():
            shapes = [None if word == "-" else word for word in words.split()]
            version = key.removesuffix("!")
            made.setdefault(upstream, {})[version] = Release(
                version, key.endswith("!"), dict(zip(places, shapes, strict=True))
            )
    return made

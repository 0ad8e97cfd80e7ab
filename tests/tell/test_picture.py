"""The picture is well-formed SVG without scripts: a cell for each column and fix, and no labels that overlap."""

import re
from collections import Counter
from collections.abc import Mapping
from xml.etree import ElementTree

import pytest

from support import cli, made_up
from unhang.judge import matrix
from unhang.shapes import catalog
from unhang.tell import version_ranges
from unhang.tell.picture import WIDTH, picture

SVG = "{http://www.w3.org/2000/svg}"
HANG, STALL = made_up.fix("hang", "core"), made_up.fix("stall", "core", "swift", grade="safeguard")
BOTH = [HANG, STALL]
CORE = {
    "0.9.0": "- affected",
    "0.9.1!": "- affected",
    **{f"0.10.0rc0.dev{number}": "- affected" for number in range(99000, 99339)},
    "0.10.0rc1": "affected fixed",
    "0.10.0rc2": "affected fixed",
    "0.10.0": "affected -",
    "0.10.1": "affected -",
    "0.11.0": "unseen not-affected",
}


def rows_of(**upstreams: Mapping[str, str]) -> list[matrix.Row]:
    return matrix.rows(BOTH, made_up.releases(BOTH, **upstreams), made_up.table(*BOTH))


def drawn(**upstreams: Mapping[str, str]) -> ElementTree.Element:
    return ElementTree.fromstring(picture(rows_of(**upstreams), BOTH))


def cells(root: ElementTree.Element) -> dict[str, str]:
    """Return the class (a verdict) of each cell, by the cell's title."""
    groups = (group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None)
    found = [(group.findtext(f"{SVG}title", ""), group.get("class", "")) for group in groups]
    assert len(dict(found)) == len(found)
    return dict(found)


def text(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [item for item in root.iter(f"{SVG}text") if item.get("class") == kind]


def test_each_column_has_a_label_and_a_cell_for_each_fix() -> None:
    labels = [item.text for item in text(drawn(core=CORE), "version")]
    assert labels == ["0.9", "339 nightlies", "0.10.0rc1", "to 0.10.0rc2", "0.10.0", "to 0.10.1", "0.11"]
    assert cells(drawn(core=CORE, swift={"4.0.0": "affected"})) == {
        "hang, core 0.9.0 to 0.9.1: not-affected; yanked: 0.9.1": "not-affected",
        "stall, core 0.9.0 to 0.9.1: needed; yanked: 0.9.1": "needed",
        "hang, core 339 nightlies: not-affected": "not-affected",
        "stall, core 339 nightlies: needed": "needed",
        "hang, core 0.10.0rc1 to 0.10.0rc2: needed": "needed",
        "stall, core 0.10.0rc1 to 0.10.0rc2: fixed-upstream": "fixed-upstream",
        "hang, core 0.10.0 to 0.10.1: needed": "needed",
        "stall, core 0.10.0 to 0.10.1: not-affected": "not-affected",
        "hang, core 0.11.0: drifted": "drifted",
        "stall, core 0.11.0: not-affected": "not-affected",
        "stall, swift 4.0.0: needed": "needed",
    }


def test_a_verdict_has_a_sign_as_well_as_a_colour() -> None:
    signs: dict[str, set[str | None]] = {}
    for group in drawn(core=CORE).iter(f"{SVG}g"):
        signs.setdefault(group.get("class", ""), set()).update(path.get("d") for path in group.iter(f"{SVG}path"))
    assert set(signs) == {"needed", "fixed-upstream", "not-affected", "drifted"}
    assert all(len(paths) == 1 for paths in signs.values())
    assert len(set().union(*signs.values())) == len(signs)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_the_colours_differ_in_lightness_too(mode: str) -> None:
    style = drawn(core=CORE).findtext(f"{SVG}style", "")
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    fills = dict(re.findall(r"\.([\w-]+) rect \{ fill: #(\w{6})", {"light": light, "dark": dark}[mode]))
    weights = (0.299, 0.587, 0.114)
    lightness = {
        name: sum(weight * int(fill[place : place + 2], 16) for weight, place in zip(weights, (0, 2, 4), strict=True))
        for name, fill in fills.items()
    }
    values = sorted(lightness[name] for name in ("needed", "fixed-upstream", "not-affected"))
    assert min(right - left for left, right in zip(values, values[1:])) > 40


def test_the_legend_has_only_the_verdicts_in_the_picture() -> None:
    for root, verdicts in (
        (drawn(core=CORE), ["needed", "fixed-upstream", "not-affected", "drifted"]),
        (drawn(swift={"4.0.0": "affected"}), ["needed"]),
    ):
        texts = [item.text or "" for item in root.iter(f"{SVG}text")]
        assert [item.split(":")[0] for item in texts if ": " in item] == verdicts


def test_a_description_in_words_is_there_for_screen_readers() -> None:
    root = drawn(core=CORE, swift={"4.0.0": "affected"})
    assert root.get("role") == "img"
    assert {root.find(f"{SVG}{name}").get("id") for name in ("title", "desc")} == set(  # type: ignore[union-attr]
        root.get("aria-labelledby", "").split()
    )
    assert root.findtext(f"{SVG}desc") == (
        "hang (cure; hang): needed by core 0.10.0rc1 to 0.10.1. "
        "stall (safeguard; hang): needed by core 0.9.0 to 0.9.1, and 339 nightlies; swift 4.0.0."
    )


def test_nothing_overlaps_or_is_outside() -> None:
    """Try more columns than fit side by side, and long labels."""
    swift = {f"{major}.{minor}.{micro}": "-" for major in (3, 4) for minor in range(20) for micro in range(3)}
    swift["4.7.1rc12"] = "affected"
    root = drawn(core=CORE, swift=swift)
    boxes = []
    for group in root.iter(f"{SVG}g"):
        left, top = map(float, re.findall(r"[\d.]+", group.get("transform", "")))
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        boxes.append((left, top, left + float(rect.get("width", 0)), top + float(rect.get("height", 0))))
    for item in text(root, "version"):  # at 11 px a digit is about 6.2 px wide, a dot half of that
        label, middle, base = item.text or "", float(item.get("x", 0)), float(item.get("y", 0))
        half = 3.1 * len(label) - 1.55 * label.count(".")
        boxes.append((middle - half, base - 9, middle + half, base + 1))
    height = float(root.get("height", 0))
    assert min(min(left, top) for left, top, _, _ in boxes) >= 0
    assert all(right <= WIDTH and base <= height for _, _, right, base in boxes)
    boxes.sort()
    for number, (_, top, right, base) in enumerate(boxes):
        for left, other_top, _, other_base in boxes[number + 1 :]:
            assert left >= right or other_top >= base or other_base <= top


def test_columns_that_do_not_fit_are_split_evenly() -> None:
    def widths(columns: int) -> list[int]:
        swift = {f"4.{minor}.0": "affected" for minor in range(columns)}
        tops = [group.get("transform", "").split()[1] for group in drawn(swift=swift).iter(f"{SVG}g")]
        return list(Counter(tops[1:]).values())  # without the legend

    assert widths(20) == [20]
    assert widths(24) == [12, 12]
    assert widths(49) == [17, 17, 15]


def test_the_command_draws_the_real_matrix_with_the_same_bytes_each_time() -> None:
    command = "matrix", "--output-format", "svg"
    first, again = (cli.installed(*command, env={"PYTHONHASHSEED": seed}) for seed in ("1", "2"))
    assert (first.code, first.err, first.out) == (0, "", again.out)
    fixes = list(catalog.fixes().values())
    rows = matrix.rows(fixes, catalog.releases(), catalog.shape_table())
    assert first.out == picture(rows, fixes)
    columns = sum(len(panel.ranges) * len(panel.fixes) for panel in version_ranges.panels_by_series(rows, fixes))
    root = ElementTree.fromstring(first.out)
    assert len(cells(root)) == columns > 40
    assert set(cells(root).values()) == {"needed", "fixed-upstream", "not-affected"}
    tags = {item.tag.removeprefix(SVG) for item in root.iter()}
    assert tags == {"svg", "title", "desc", "style", "rect", "text", "g", "path"}, "no script"
    assert not re.search(r"href|url\(", first.out), "no other file"
    assert first.out.count("http") == 1, "the namespace"

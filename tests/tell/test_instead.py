"""What the page of a fix says of other packages that run code of their own."""

from support.gates import GATE
from unhang.shapes import catalog
from unhang.tell import instead


def test_a_line_for_each_package_and_nothing_where_there_is_none() -> None:
    assert instead.section(GATE) == ""
    row = {"package": "Deep", "what": "copies run", "read": "1.0"}
    lines = instead.section(GATE._replace(manifest={"instead": [row, {**row, "package": "Other"}]})).splitlines()
    assert (lines[0], lines[-2:]) == (
        "## What runs instead",
        ["- Deep copies run (read in 1.0).", "- Other copies run (read in 1.0)."],
    )


def test_each_sentence_of_the_manifests_has_an_end() -> None:
    for fix in catalog.fixes().values():
        for row in fix.manifest.get("instead", ()):
            assert not row["what"].endswith((".", ";")), row

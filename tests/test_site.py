"""What the site's pages are made of, before Sphinx builds them: `nox -s docs` does, and a warning is an error there."""

import argparse
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sitemaker import __main__ as sitemaker
from sitemaker.diagram import with_diagrams
from sitemaker.links import BLOB, relinked, with_fixes
from sitemaker.pictures import with_pictures
from unhang.cli.arguments import whole
from unhang.cli.error_codes import codes
from unhang.judge.matrix import is_nightly
from unhang.shapes import catalog

ROOT = Path(__file__).parent.parent
PLACES = {"README.md": "index.md", "docs/ci.md": "ci.md", "docs/deep/one.md": "deep/one.md", "docs/a.svg": "a.svg"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    sitemaker.main(folder)
    return folder


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("README.md", "docs/ci.md#the-key", "ci.md#the-key"),
        ("README.md", f"{BLOB}docs/deep/one.md", "deep/one.md"),
        ("README.md", "docs/a.svg", "a.svg"),
        ("README.md", "LICENSE", f"{BLOB}LICENSE"),
        ("docs/ci.md", "../README.md#the-fixes", "index.md#the-fixes"),
        ("docs/ci.md", "docker/Dockerfile", f"{BLOB}docs/docker/Dockerfile"),
        ("docs/deep/one.md", "../ci.md", "../ci.md"),
        ("docs/deep/one.md", "../a.svg", "../a.svg"),
        ("docs/ci.md", "https://github.com/x/y", "https://github.com/x/y"),
        ("docs/ci.md", "#inputs", "#inputs"),
    ],
)
def test_a_link_leads_to_the_site_or_else_to_github(page: str, link: str, expected: str) -> None:
    assert relinked(f"see [this]({link}), `f(x)`", page, PLACES) == f"see [this]({expected}), `f(x)`"


def test_a_page_called_by_its_file_gets_its_title_from_sphinx() -> None:
    assert relinked("[docs/ci.md](docs/ci.md#a)", "README.md", PLACES) == "[](ci.md#a)"
    assert relinked("[gone.md](gone.md)", "README.md", PLACES) == f"[gone.md]({BLOB}gone.md)"


def test_the_command_that_explains_a_fix_links_to_its_page() -> None:
    text = "run `unhang explain one`\n| `one` | two |\n`one` alone, `unhang explain other`"
    linked = "run [`unhang explain one`](../fixes/one.md)\n| [`one`](../fixes/one.md) | two |"
    assert with_fixes(text, "deep/page.md", ["one"]) == f"{linked}\n`one` alone, `unhang explain other`"


CHART = """flowchart TD
    a["a<br>1. first"]
    b["b"]
    c["c"]
    a --> b
    a --> c
    b --> c
"""


def test_a_flowchart_is_drawn_from_the_top_with_its_words() -> None:
    page = with_diagrams(f"before\n```mermaid\n{CHART}```\nafter\n")
    before, picture, after = page.splitlines()
    root = ElementTree.fromstring(picture)
    boxes = [rect for rect in root.iter("rect") if rect.get("class") == "box"]
    texts = [text.text for text in root.iter("text")]
    assert (before, after, texts) == ("before", "after", ["a", "1. first", "b", "c"])
    tops = [float(box.get("y", "")) for box in boxes]
    assert tops == sorted(set(tops)), "each stands below all that point to it"
    assert len(list(root.iter("path"))) == 4, "the arrow from a to c passes the layer of b"
    assert "a to b, a to c, b to c" in "".join(root.itertext())


@pytest.mark.parametrize("line", ["    c --> a", "    a --> gone", "    subgraph x", '    a -->|"no"| b'])
def test_a_flowchart_of_anything_else_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"more than boxes|in a circle"):
        with_diagrams(f"```mermaid\n{CHART}{line}\n```\n")


def test_a_drawing_is_part_of_the_page_and_another_picture_is_not() -> None:
    text = "![a](drawings/one.svg) ![b](../drawings/one.svg) ![c](matrix.svg) ![d](drawings/gone.svg)"
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><style>x</style><text>T</text></svg>'
    shown = '<div class="drawing"><svg><text class="nohighlight">T</text></svg></div>'
    assert with_pictures(text, {"one.svg": svg}) == f"{shown} {shown} ![c](matrix.svg) ![d](drawings/gone.svg)"


def test_the_start_page_has_three_doors_and_the_readme_below(source: Path) -> None:
    page = (source / "index.md").read_text()
    doors = re.findall(r'<a href="([\w-]+)\.html"><strong>', page)
    assert doors == ["my-job-hangs", "my-numbers-are-wrong", "lock"]
    for door in doors:
        assert re.search(r"^(    |RUN )unhang ", (source / f"{door}.md").read_text(), re.MULTILINE), "a command"
    assert (page.count("# unhang\n"), page.count("## The fixes\n")) == (1, 1)
    assert page.count('<svg class="unhang-drawing"') == 1


def test_the_side_bar_leads_to_the_maintainers_pages_by_one(source: Path) -> None:
    sidebar = (source / "index.md").read_text().partition("```{toctree}")[2]
    assert re.findall(r"^(?:maintainers|reports|contributing|architecture).*", sidebar, re.MULTILINE) == [
        "maintainers/index"
    ]
    index = (source / "maintainers" / "index.md").read_text()
    linked = {
        (source / "maintainers" / page).resolve() for page in re.findall(r"^- \[\]\((.*)\)$", index, re.MULTILINE)
    }
    alone = {path.resolve() for path in source.rglob("*.md") if path.read_text().startswith("---\norphan: true\n---\n")}
    proofs = {path for path in alone if path.parent.name == "proofs"}
    assert (len(linked), linked) == (len(alone - proofs), alone - proofs)
    of_proofs = (source / "maintainers" / "proofs.md").read_text()
    assert [path.name for path in sorted(proofs) if f"(proofs/{path.name}" not in of_proofs] == []
    assert {"contributing.md", "architecture.md", "release.md", "router-token-scale.md"} <= {
        path.name for path in linked
    }


def test_both_tables_of_the_fixes_can_be_lists(source: Path) -> None:
    for page in "index.md", "fixes/index.md":
        (table,) = re.findall(r"^```\{table\}\n:class: fixes\n\n(.*?)\n```$", (source / page).read_text(), re.M | re.S)
        assert table.count("\n") == len(catalog.fixes()) + 1, "the head, and a line below it"


def test_the_example_pack_is_no_page(source: Path) -> None:
    assert (ROOT / "docs/packs/accelerate-fixes/patches").is_dir()
    assert not (source / "packs").exists()
    assert (source / "packs.md").exists()


def test_each_fix_has_its_drawing_on_its_page_and_a_page_of_its_proof(source: Path) -> None:
    for fix in catalog.fixes():
        page = (source / "fixes" / f"{fix}.md").read_text()
        assert page.count(f'aria-labelledby="{fix}-title {fix}-words"') == 1
        assert f"(../maintainers/proofs/{fix}.md)" in page
        assert (source / "maintainers" / "proofs" / f"{fix}.md").exists()


def test_each_fix_has_a_page_with_its_functions_and_stack_frames(source: Path) -> None:
    for fix in catalog.fixes().values():
        page = (source / "fixes" / f"{fix.id}.md").read_text()
        frames = [hang.get("waits", []) for hang in fix.manifest.get("signature", {}).get("hangs", ())]
        named = {*re.findall(r"::([\w.]+)", json.dumps(frames)), *(target.function for target in fix.targets)}
        assert named <= {*re.findall(r"`([\w.]+)`", page)}
        assert f"unhang apply --fix {fix.id}\n" in page
        assert f"({fix.id}.md)" in (source / "fixes" / "index.md").read_text()


def test_the_matrix_has_each_release_with_what_it_needs(source: Path) -> None:
    page = (source / "matrix.md").read_text()
    rows = dict(re.findall(r"^\| (\S+ \S+).*? \| (.*) \| .*? \|$", page, re.MULTILINE))
    assert "(fixes/mtp-cp-deadlock.md)" in rows["verl 0.7.1"]
    assert "mtp-cp-deadlock" not in rows["verl 0.7.0"] + rows["verl 0.8.0"]
    for upstream, releases in catalog.releases().items():
        nightlies = [version for version in releases if is_nightly(version)]
        assert [
            f"{upstream} {version}" for version in releases.keys() - {*nightlies} if f"{upstream} {version}" not in rows
        ] == []
        counts = re.findall(rf"^\| {upstream} (\d+) nightlies", page, re.MULTILINE)
        assert sum(map(int, counts)) == len(nightlies)


def test_the_reference_has_each_command_and_option(source: Path) -> None:
    page = (source / "reference" / "commands.md").read_text()
    (commands,) = (action for action in whole()._actions if isinstance(action, argparse._SubParsersAction))
    for name, parser in commands.choices.items():
        section = page.partition(f"## unhang {name}\n")[2].partition("\n## ")[0]
        options = {option for action in parser._actions if action.dest != "help" for option in action.option_strings}
        assert options <= {*re.findall(r"--?[\w-]+", "".join(re.findall(r"^- .*", section, re.MULTILINE)))}
        assert "Exit codes: 0" in section


def test_the_reference_has_each_error_code_with_its_cure(source: Path) -> None:
    page = " ".join((source / "reference" / "errors.md").read_text().split())
    for code, explained in codes().items():
        assert f" ## {code} {explained.cause} **Cure.** {explained.cure}" in page
    assert "reference/errors.md" in (source / "json.md").read_text()


def test_the_reference_has_each_key_of_the_schemas(source: Path) -> None:
    page = (source / "reference" / "schemas.md").read_text()
    section = page.partition("## facts.json\n")[2].partition("\n## ")[0]
    assert "| `schema` | `1` | The version of the file's format. |" in section
    assert "| `releases` | object | By upstream and version, the shape of each" in section

"""The lines that pages show for an image, a project or a node cure what is there, whichever releases it has."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import cli
from support.checkout import REPOSITORY

_APPLY = re.compile(r"unhang (apply(?: --[\w-]+[ =][\w./-]+)*? --require[ =][\w-]+(?: --[\w-]+[ =][\w./-]+)*)")
_WHERE = re.compile(r" --(?:source|target|python)[ =]\S+")


def lines() -> Iterator[tuple[str, str]]:
    """Yield each `apply --require` that a page shows for fixes of ours, with the page; where it looks is left out."""
    for path in sorted(path for path in (REPOSITORY / "docs").rglob("*") if path.is_file()):
        if path.suffix in (".md", ".def", ".verl", ".megatron"):
            text = re.sub(r"\s*\\\n\s*", " ", path.read_text(encoding="utf-8"))
            for words in _APPLY.findall(text):
                if "--pack" not in words and " ID" not in words:
                    yield path.name, _WHERE.sub("", words)


SHOWN = sorted(lines())


def test_the_pages_for_images_projects_and_nodes_show_one_that_leaves_nothing_out() -> None:
    pages = {
        "docker.md",
        "Dockerfile.verl",
        "Dockerfile.megatron",
        "job.def",
        "uv.md",
        "conda.md",
        "slurm.md",
        "fleets.md",
    }
    assert pages <= {page for page, _ in SHOWN}
    assert [line for line in SHOWN if "--fix" in line[1]] == []


@pytest.mark.slow
@pytest.mark.parametrize("verl", ["0.7.1", "0.8.0", "0.9.1"])
@pytest.mark.parametrize("line", sorted({line for _, line in SHOWN}))
def test_each_leaves_nothing_that_is_needed(line: str, verl: str, tmp_path: Path) -> None:
    site = cli.unpack_targets(tmp_path / "site", ("verl", verl), ("megatron-core", "0.16.1"))
    ran = cli.called_with_all(*line.split(), "--target", site)
    assert ran.code == 0, ran.err
    left = cli.called_with_all("check", "--target", site, "--output-format", "json")
    assert (left.code, {it["verdict"] for it in left.json["results"]}) == (
        0,
        {"applied", "fixed-upstream", "not-affected"},
    )

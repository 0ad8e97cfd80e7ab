"""A version is what the source states, and a RECORD is the one that lists the package; nothing is imported."""

import os
from pathlib import Path

import pytest

from support import cli
from support import environments as make
from unhang.find.environment import for_target
from unhang.find.locate import search


def versions(folder: Path) -> list[str | None]:
    return [found.version for found in search(for_target(str(folder)), cwd="/").installations]


def records(folder: Path) -> list[tuple[str, str | None]]:
    return [(found.kind, found.record) for found in search(for_target(str(folder)), cwd="/").installations]


def leftover(site: Path, folder: str, rows: str) -> str:
    return str(make.write(site, {f"{folder}/RECORD": rows}) / folder / "RECORD")


@pytest.mark.parametrize(
    "text", ["", "MAJOR = x\nMINOR = 1\nPATCH = 0", "def f():\n    MAJOR = 1\nMINOR = 1\nPATCH = 0"]
)
def test_a_version_that_the_source_does_not_state(tmp_path: Path, text: str) -> None:
    make.write(make.tree(tmp_path), {"megatron/core/package_info.py": text})
    assert versions(tmp_path) == [None, None]


@pytest.mark.parametrize(
    "text", ["0.7.1\n::error::X", "\x1b[31m0.7.1", "0.7.1|<b>`x`", "../../../etc", "[0.7](https://x)", "0.7.1\udce9 "]
)
def test_what_cannot_be_a_version_is_none_and_reaches_no_output_as_it_stands(tmp_path: Path, text: str) -> None:
    package = cli.unpack_targets(tmp_path, ("verl", "0.7.1")) / "verl"
    (package / "version" / "version").write_text(text, errors="surrogateescape")
    assert versions(tmp_path) == [None]
    for output_format in "text", "github", "json":
        ran = cli.unhang("check", "--target", tmp_path, "--output-format", output_format)
        assert ran.code == 1, ran
        printed = ran.out + ran.err
        assert printed.count("as its version, which cannot be one: it counts as none") == 1
        assert "\x1b" not in printed
        assert "\n::error::X" not in printed
    make.write(
        make.tree(tmp_path / "tree"), {"megatron/core/package_info.py": "MAJOR=0\nMINOR=1\nPATCH=2\nPRE_RELEASE='|x'"}
    )
    assert versions(tmp_path / "tree") == [None, None]


def test_a_version_in_another_notation(tmp_path: Path) -> None:
    info = (
        "# \u00a9\nMAJOR: int = 0  # zero\r\nMINOR=18\nPATCH  =  2 \nPRE_RELEASE = \"rc1\"  # 'x'\nVERSION = (MAJOR,)"
    )
    (make.tree(tmp_path) / "megatron" / "core" / "package_info.py").write_text(info, encoding="latin-1")
    make.write(make.verl(tmp_path), {"verl/version/version": "\n0.8.0.dev\r\n"})
    assert versions(make.swift(tmp_path, "4.6.0.dev0")) == ["0.18.2rc1", "0.18.2rc1", "0.8.0.dev", "4.6.0.dev0"]


def test_a_record_that_does_not_list_the_package(tmp_path: Path) -> None:
    make.tree(tmp_path, "0.17.0")
    leftover(tmp_path, "megatron_core-0.17.0.dist-info", "megatron/core/utils.pyc,,\nold/megatron/core/__init__.py,,\n")
    leftover(tmp_path, "megatron_core-0.12.0.dist-info", "megatron_core-0.12.0.dist-info/METADATA,,\n")
    assert records(tmp_path) == [("source", None)] * 2


def test_each_package_needs_a_row_of_its_own(tmp_path: Path) -> None:
    make.tree(tmp_path, "0.16.1")  # training was copied in beside an old wheel, which never had it
    rows = "megatron/core/__init__.py,,\r\nmegatron/core/x.py,,\r\n"
    record = leftover(tmp_path, "megatron_core-0.16.1.dist-info", rows)
    assert records(tmp_path) == [("wheel", record), ("source", None)]


def test_a_record_under_another_spelling_of_the_version(tmp_path: Path) -> None:
    make.verl(tmp_path, "0.8.0.dev")
    rows = "verl/__init__.py,,\n"
    new = leftover(tmp_path, "verl-0.8.0.dev0.dist-info", rows)
    os.utime(leftover(tmp_path, "verl-0.9.0.dist-info", rows), (1, 1))
    os.utime(new, (2, 2))
    leftover(tmp_path, "verl_tools-0.8.0.dist-info", rows)  # of another distribution
    assert records(tmp_path) == [("wheel", new)]


@pytest.mark.parametrize(("rows", "version"), [("trl/__init__.py,,\n", "1.9.0"), ("", "7.7")])
def test_a_version_beside_the_package_is_that_of_a_checkout_alone(tmp_path: Path, rows: str, version: str) -> None:
    make.trl(tmp_path, "7.7")  # or another project's VERSION, in a site-packages
    leftover(tmp_path, "trl-1.9.0.dist-info", rows)
    assert versions(tmp_path) == [version]

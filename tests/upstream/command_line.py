"""The command line of `nox -s upstream -- UPSTREAM REF`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from upstream import trees

_ABOUT = "Run an upstream's own tests on its untouched tree and on the patched one, and compare them."


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options, and make the folders that they name. Exits with 2 on a usage error."""
    parser = argparse.ArgumentParser(prog="nox -s upstream --", description=_ABOUT)
    parser.add_argument("upstream", help="megatron-lm, verl or ms-swift")
    parser.add_argument("ref", help="a tag, a branch, a commit or a version")
    parser.add_argument("--all", action="store_true", help="run all tests, not only the selected files")
    parser.add_argument("--only", action="append", metavar="TEXT", help="run only files with TEXT in their path")
    parser.add_argument("--clone", metavar="PATH_OR_URL", help="where the ref is (default: the environment variable's)")
    parser.add_argument("--sdist", action="store_true", help="use the pinned sdist of the release")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks (default: one for each GPU, or 1 on a CPU)")
    parser.add_argument("--posing", action="store_true", help="on a CPU, also run tests that ask for CUDA")
    parser.add_argument("--deadline", type=float, default=300, metavar="S", help="for each file and side (300)")
    parser.add_argument("--tmp", type=_folder, required=True, metavar="DIR", help="for environments and reports")
    parser.add_argument("--cache", type=_folder, default=str(trees.CACHE), metavar="DIR", help="for clones and sdists")
    return parser.parse_args(arguments)


def _folder(text: str) -> Path:
    folder = Path(text).resolve()  # tests run in the trees
    folder.mkdir(parents=True, exist_ok=True)
    return folder

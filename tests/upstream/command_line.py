"""`nox -s upstream -- UPSTREAM REF`: what can be said on its command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from upstream import trees

_ABOUT = "an upstream's own tests, on its tree as it is and on the patched one, compared"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options. Exits with 2, and says why, where they are wrong; the folders named are made."""
    parser = argparse.ArgumentParser(prog="nox -s upstream --", description=_ABOUT)
    parser.add_argument("upstream", help="megatron-lm, verl or ms-swift")
    parser.add_argument("ref", help="a tag, a branch, a commit or a version")
    parser.add_argument("--all", action="store_true", help="run all tests, not only the selection")
    parser.add_argument("--only", action="append", metavar="TEXT", help="of those, files with this in their path")
    parser.add_argument("--clone", metavar="PATH_OR_URL", help="where the ref is; else the environment variable's")
    parser.add_argument("--sdist", action="store_true", help="take the sdist of the release, which is pinned")
    parser.add_argument("--ranks", type=int, metavar="N", help="on a CPU 1, else as many as there are GPUs")
    parser.add_argument("--posing", action="store_true", help="on a CPU, run what asks for CUDA too")
    parser.add_argument("--deadline", type=float, default=300, metavar="S", help="for each file, each side (300)")
    parser.add_argument("--tmp", type=_folder, required=True, metavar="DIR", help="environments, and the reports")
    parser.add_argument("--cache", type=_folder, default=str(trees.CACHE), metavar="DIR", help="for clones, sdists")
    return parser.parse_args(arguments)


def _folder(text: str) -> Path:
    folder = Path(text).resolve()  # tests run in the trees
    folder.mkdir(parents=True, exist_ok=True)
    return folder

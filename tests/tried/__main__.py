"""Try patches of others, and print what came of them: ``python -m tried [--write-docs] [-k WORDS]``.

UNHANG_NEMO_RL_CLONE, UNHANG_SLIME_CLONE and UNHANG_MEGATRON_CLONE name clones; what a missing one has is left out, and
said so. ``--write-docs`` writes docs/maintainers/packs-tried.md, for which all are needed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from support.pages import fill
from tried import hunks, page, steps, trees
from tried.clones import commit, shown
from tried.originals import NEMO_RL, Upstream
from tried.steps import Tried

PAGE = Path(__file__).resolve().parents[2] / "docs" / "maintainers" / "packs-tried.md"
CLONES = {name: f"UNHANG_{name}_CLONE" for name in ("NEMO_RL", "SLIME", "MEGATRON")}


def main() -> int:
    """Try all patches whose clones are given. Return 2 where some are missing and the page is to be written."""
    parser = argparse.ArgumentParser(prog="python -m tried", description=__doc__)
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("-k", default="", help="only patches with this in their names")
    options = parser.parse_args()
    clones = {name: os.environ.get(variable, "") for name, variable in CLONES.items()}
    missing = [CLONES[name] for name, where in clones.items() if not where]
    for variable in missing:
        print(f"{variable} names no clone: what it has is left out", file=sys.stderr)
    if missing and options.write_docs:
        return 2
    parts = {}
    with tempfile.TemporaryDirectory(prefix="unhang-tried-") as folder:
        if clones["NEMO_RL"]:
            found = nemo_rl(clones["NEMO_RL"], Path(folder), options.k)
            parts["nemo-rl"] = page.tried(found, commit(clones["NEMO_RL"], "HEAD"))
        if clones["SLIME"] and clones["MEGATRON"] and not options.k:
            parts["slime"] = hunks.slime(clones["SLIME"], clones["MEGATRON"], Path(folder))
    for name, text in parts.items():
        print(text)
        if options.write_docs:
            fill(PAGE, f"<!-- {name}: written by nox -s tried -->", f"<!-- {name}: end -->", text)
    return 0


def nemo_rl(clone: str, folder: Path, words: str = "") -> list[Tried]:
    """Try NeMo-RL's patches, each on the release that it is for, into one pack."""
    pristine: dict[Upstream, Path] = {}
    found = []
    for number, original in enumerate(one for one in NEMO_RL if words in one.name):
        if original.upstream not in pristine:
            root = folder / f"{original.upstream.project}-{original.upstream.version}"
            pristine[original.upstream] = trees.unpacked(original.upstream, root)
        work = folder / f"{number}"
        work.mkdir()
        source = work / Path(original.source).name
        source.write_bytes(shown(clone, f"HEAD:{original.source}"))
        found.append(steps.tried(original, source, pristine[original.upstream], folder / "nemo-rl", work))
        print(f"tried {original.name}", file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())

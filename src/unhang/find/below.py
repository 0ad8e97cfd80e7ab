"""Copies of the upstreams deep in a folder: a project that vendors them has them in `third_party/` or the like."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from unhang.find import answers

_DEEPEST = 4  # third_party/nemo/3rdparty/Megatron-LM, lib/python3.12/site-packages
_MOST = 20_000  # entries: a data set must not keep anybody waiting
_SKIPPED = ("node_modules", "__pycache__")


def roots(top: str, modules: Collection[str]) -> Iterator[str]:
    """Yield the folders below ``top`` that have one of these upstreams' packages, the highest ones first.

    No link is followed, and nothing is looked for in hidden folders, in environments, or below a folder that is found.
    """
    names = {module.partition(".")[0] for module in modules}
    level, seen = [top], 0
    for depth in range(_DEEPEST + 1):
        below: list[str] = []
        for folder in level:
            inside = []
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        seen += 1
                        if seen > _MOST:
                            return
                        if entry.is_dir(follow_symlinks=False):
                            inside.append(entry.name)
            except OSError:
                continue  # nobody has named it
            if depth and not names.isdisjoint(inside) and any(_has(folder, module) for module in modules):
                yield folder
            elif not os.path.lexists(os.path.join(folder, "pyvenv.cfg")):
                below += [os.path.join(folder, name) for name in sorted(inside) if _is_searched(name)]
        level = below


def _is_searched(name: str) -> bool:
    return not name.startswith(".") and name not in _SKIPPED


def _has(root: str, module: str) -> bool:
    return answers.is_installed(module, answers.in_folder(root, module))

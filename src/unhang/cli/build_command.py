"""``unhang pack build DIR``: the wheel of a pack, so that people install it."""

from __future__ import annotations

import argparse
import os

from unhang.deliver import pack_wheel
from unhang.plugins import packs
from unhang.tell import console


def run(options: argparse.Namespace) -> int:
    """Write the wheel; return 0. Raises UnhangError as ``pack_wheel.build``, and OSError; nothing is written then."""
    packs.use([*options.pack, options.folder], True, os.environ)
    packs.refuse_empty()
    built = pack_wheel.build(options.folder)
    os.makedirs(options.output, exist_ok=True)
    path = os.path.join(options.output, built.file)
    with open(f"{path}.new", "wb") as file:
        file.write(built.data)
    os.replace(f"{path}.new", path)
    console.show(f"wrote {path}: {built.fixes} fix{'' if built.fixes == 1 else 'es'}")
    return 0

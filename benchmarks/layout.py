"""Lay out the measured environments: the releases alone, and the releases among 400 other distributions."""

from __future__ import annotations

import shutil
from pathlib import Path

OTHERS = 400
FILES_EACH = 150  # 60,000 in all, as a training image has


def copied(pristine: Path, folder: Path) -> Path:
    """Copy the releases to ``folder`` without bytecode, and return ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(pristine, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def crowded(pristine: Path, folder: Path) -> Path:
    """Copy the releases to ``folder`` among made-up distributions with metadata and a RECORD, and return ``folder``."""
    copied(pristine, folder)
    for number in range(OTHERS):
        name = f"other_{number:03}"
        package, info = folder / name, folder / f"{name}-1.0.dist-info"
        package.mkdir()
        info.mkdir()
        files = [package / "__init__.py", *(package / f"module_{index:03}.py" for index in range(FILES_EACH - 3))]
        for file in files:
            file.write_text(f'"""A module of {name}."""\n')
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        rows = [f"{file.relative_to(folder)},," for file in (*files, info / "METADATA", info / "RECORD")]
        (info / "RECORD").write_text("\n".join(rows) + "\n")
    return folder

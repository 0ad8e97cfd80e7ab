"""Lay out the measured environments: the releases alone, among 400 others, with thirty fixes, with a pack of thirty."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import unhang
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix

OTHERS = 400
THIRTY = 30
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


def thirty(pristine: Path, folder: Path) -> Path:
    """Lay out in ``folder`` unhang with thirty fixes, and the releases with files for all of these; return ``folder``.

    A made-up fix is a copy of a real one, for copies of the files that this one rewrites. ``site`` has the releases,
    ``path`` is for PYTHONPATH, and has unhang.
    """
    site, path = copied(pristine, folder / "site"), folder / "path"
    shutil.copytree(Path(unhang.__file__).parent, path / "unhang", ignore=shutil.ignore_patterns("__pycache__"))
    for name in "codemods", "patches", "compat", "upstreams":  # an editable install has these elsewhere
        found = importlib.import_module(f"unhang.{name}").__path__[0]
        shutil.copytree(found, path / "unhang" / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    models = list(catalog.fixes().values())
    for number in range(THIRTY - len(models)):
        _copy(models[number % len(models)], f"made-up-{number:02}", path / "unhang", site)
    subprocess.run([sys.executable, "-m", "compileall", "-q", path], check=True)
    return folder


def packed(pristine: Path, folder: Path) -> Path:
    """Lay out in ``folder`` a pack of thirty fixes, and the releases with files for all of these; return ``folder``.

    ``site`` has the releases, ``pack`` is the pack. Its fixes are copies of ours.
    """
    site, pack = copied(pristine, folder / "site"), folder / "pack"
    for name in "codemods", "patches", "compat":
        found = importlib.import_module(f"unhang.{name}").__path__[0]
        shutil.copytree(found, pack / name, ignore=shutil.ignore_patterns("__pycache__"))
    every = list(catalog.fixes().values())
    models = [fix for fix in every if any((site / target.file).exists() for target in fix.targets)]
    for number in range(THIRTY):
        _copy(models[number % len(models)], f"made-up-{number:02}", pack, site)
    for model in every:
        shutil.rmtree(pack / "patches" / model.id)
        (pack / "compat" / "data" / f"{model.id}.json").unlink()
    for path in pack.glob("patches/*/manifest.json"):
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "id": path.parent.name}), encoding="utf-8")
    about = {"schema": 1, "name": "made-up", "version": "1", "requires-unhang": ">=0"}
    (pack / "pack.json").write_text(json.dumps(about), encoding="utf-8")
    return folder


def _copy(model: Fix, name: str, package: Path, site: Path) -> None:
    """Add a fix of this name, like its model, to a copy of unhang, and the files that it is about to the releases."""
    texts = {model.id: name}
    for target in model.functions:
        folder, _, file = target.file.rpartition("/")
        texts[target.file] = f"{folder}/{name.replace('-', '_')}_{file}"
        if (site / target.file).exists():
            shutil.copy(site / target.file, site / texts[target.file])
    module = model.id.replace("-", "_")
    parts = [package / "patches" / model.id, package / "compat" / "data" / f"{model.id}.json"]
    parts += [part for part in (package / "codemods" / module, package / "codemods" / f"{module}.py") if part.exists()]
    for part in parts:
        place = part.with_name(part.name.replace(model.id, name).replace(module, name.replace("-", "_")))
        (shutil.copytree if part.is_dir() else shutil.copy)(part, place)
        for path in place.rglob("*") if place.is_dir() else [place]:
            if path.suffix in (".json", ".py"):
                text = path.read_text(encoding="utf-8")
                for old, new in texts.items():
                    text = text.replace(old, new)
                path.write_text(
                    text.replace(f"codemods.{module}", f"codemods.{name.replace('-', '_')}"), encoding="utf-8"
                )

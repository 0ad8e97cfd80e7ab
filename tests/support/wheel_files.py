"""Variants of real wheels, made-up wheels, and what is in them."""

import csv
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from support import wheels

VERL = ("verl", "0.7.1")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
DEMO = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"


def demo(folder: Path, *, name: str = DEMO, add: Mapping[str, bytes] | None = None) -> Path:
    """Write a small valid wheel, with these members too."""
    members = {
        "demo.py": b"pass\n",
        f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\n",
        **(add or {}),
    }
    return made(folder, name, members)


def made(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    """Write a wheel with these members, and a RECORD that lists them if there is none."""
    info = next(member.partition("/")[0] for member in members if member.endswith(".dist-info/WHEEL"))
    members.setdefault(f"{info}/RECORD", "".join(f"{file},,\n" for file in [*members, f"{info}/RECORD"]).encode())
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return folder / name


def edited_verl(folder: Path) -> Path:
    """Write the wheel of verl with an edit in a target: its shape is unknown."""
    folder.mkdir()
    path = folder / "verl-0.7.1-py3-none-any.whl"
    with zipfile.ZipFile(wheels.fetch(*VERL)) as before, zipfile.ZipFile(path, "w") as after:
        for info in before.infolist():
            data = before.read(info)
            if info.filename == ENGINE:
                data = data.replace(b"self.is_mp_src_rank_with_outputs():", b"True:", 1)
            after.writestr(info, data, compresslevel=1)
    return path


def in_data(folder: Path, scheme: str) -> Path:
    """Write the wheel of verl with its modules below the .data folder, from where installers put them in place."""
    folder.mkdir()
    path = folder / "verl-0.7.1-py3-none-any.whl"
    moved = f"verl-0.7.1.data/{scheme}/verl/"
    with zipfile.ZipFile(wheels.fetch(*VERL)) as before, zipfile.ZipFile(path, "w") as after:
        for name in before.namelist():
            data = before.read(name)
            if name.endswith(".dist-info/RECORD"):
                data = data.replace(b"\nverl/", b"\n" + moved.encode())
                data = moved.encode() + data.removeprefix(b"verl/") if data.startswith(b"verl/") else data
            after.writestr(name.replace("verl/", moved, 1) if name.startswith("verl/") else name, data)
    return path


def records(path: Path) -> dict[str, tuple[str, str]]:
    """Return hash and size of each row of a wheel's RECORD."""
    with zipfile.ZipFile(path) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        rows = csv.reader(io.StringIO(archive.read(name).decode()))
        return {row[0]: (row[1], row[2]) for row in rows}


def find_links(folder: Path, *releases: tuple[str, str]) -> list[str]:
    """Return pip's options for an index that has these releases only."""
    folder.mkdir()
    for release in releases:
        (folder / wheels.fetch(*release).name).symlink_to(wheels.fetch(*release))
    return ["--no-index", "--find-links", str(folder)]

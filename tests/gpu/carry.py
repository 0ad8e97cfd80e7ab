"""Fill a folder with what a machine without a network needs for ``nox -s gpu``: `python tests/gpu/carry.py .gpu`.

It needs pip and a network, and nothing else. The folder holds the pinned wheels of the upstreams (``wheels``) and
LibCST for the other machine's Python on x86-64 (``site``); packaging and pytest must be there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

COMPAT = Path(__file__).resolve().parents[2] / "compat"
RELEASES = (*(("megatron-core", version) for version in ("0.16.1", "0.17.1", "0.19.2")), ("ms-swift", "4.6.0"))
_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
_ANY = ("--no-deps", "--only-binary=:all:")


def main() -> None:
    """Fill the folder that the arguments name."""
    parser = argparse.ArgumentParser(prog="carry.py", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="the Python of that machine (3.12)")
    options = parser.parse_args()
    platforms = [word for minor in (28, 24, 17) for word in ("--platform", f"manylinux_2_{minor}_x86_64")]
    pinned = json.loads((COMPAT / "wheels.json").read_bytes())["wheels"]
    for project, version in RELEASES:  # nothing compiled in them is used, so they are those of the pins
        (pin,) = (pin for pin in pinned[project] if pin["version"] == version)
        wanted = ["--python-version", pin["python"], *platforms, f"{project}=={version}"]
        _pip("download", *_ANY, "--dest", str(options.folder / "wheels"), *wanted)
    wanted = ["--python-version", options.python, *platforms, "libcst>=1.4"]
    _pip("install", *_ANY, "--upgrade", "--no-compile", "--target", str(options.folder / "site"), *wanted)


def _pip(command: str, *arguments: str) -> None:
    subprocess.run([sys.executable, *_PIP, command, *arguments], check=True)


if __name__ == "__main__":
    main()

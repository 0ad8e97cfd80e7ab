"""Fill a folder with what a machine without a network needs for ``nox -s gpu``: `python tests/gpu/carry.py .gpu`.

It needs pip and a network. The folder has the pinned wheels of the upstreams (``wheels``), wheels of what they and
unhang import, for the other machine's Python on x86-64 (``packages``), and ``run``, which installs these there and runs
the session. What such a machine has besides torch, it must have: numpy, pandas, pyarrow and the like. Ray is too large:
a stand-in takes its place.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
RELEASES = {
    "megatron-core": ("0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2"),
    "megatron-bridge": ("0.6.2",),
    "mcore-bridge": ("1.4.2",),
    "ms-swift": ("4.1.2", "4.3.0", "4.5.2", "4.6.0"),
    "trl": ("1.8.0",),
    "verl": ("0.7.1", "0.8.0", "0.9.0", "0.9.1"),
}
"""Those of the proofs' core set."""
PACKAGES = (
    *("codetiming", "datasets", "dill", "einops", "hydra-core", "importlib_metadata", "mbridge", "multiprocess"),
    *("omegaconf", "orjson", "py-spy", "pydantic", "pydantic_core", "annotated-types", "pyvers", "tabulate"),
    *("tensordict", "torchdata", "transformers", "tokenizers", "huggingface_hub", "typing-inspection"),
)
"""What the proofs import that the machine lacks or has in another version, as tests/proofs/requirements.txt pins."""
_RUN = """#!/bin/sh
# Installs what this folder has, and runs `nox -s gpu` in the checkout around it.
here=$(cd "$(dirname "$0")" && pwd)
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
python3 -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$here"/packages/*.whl || exit 1
cd "$here/.." || exit 1
PYTHONPATH=src:tests:$site UNHANG_WHEELS=$here/wheels python3 -W ignore -m gpu "$@"
"""


def main() -> None:
    """Fill the folder that the arguments name."""
    parser = argparse.ArgumentParser(prog="carry.py", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="the Python of that machine (3.12)")
    options = parser.parse_args()
    pinned = json.loads((CHECKOUT / "compat" / "wheels.json").read_bytes())["wheels"]
    for project, versions in RELEASES.items():  # nothing compiled in them is used, so they are those of the pins
        for version in versions:
            (pin,) = (pin for pin in pinned[project] if pin["version"] == version)
            _download(options.folder / "wheels", pin["python"], f"{project}=={version}")
    lines = (CHECKOUT / "tests" / "proofs" / "requirements.txt").read_text().splitlines()
    pins = {line.partition("==")[0]: line for line in lines if "==" in line}
    for name in PACKAGES:
        _download(options.folder / "packages", options.python, pins[name])
    _download(options.folder / "packages", options.python, "libcst>=1.4")
    # antlr4 has no wheel: one that is built here fits everywhere, because it is pure Python
    built = ("wheel", "--no-deps", "--wheel-dir", str(options.folder / "packages"))
    _pip(*built, pins["antlr4-python3-runtime"])
    (options.folder / "run").write_text(_RUN)


def _download(folder: Path, python: str, wanted: str) -> None:
    platforms = [word for minor in (28, 24, 17, 12) for word in ("--platform", f"manylinux_2_{minor}_x86_64")]
    platforms += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64"]
    options = ("--no-deps", "--only-binary=:all:", "--dest", str(folder), "--python-version", python)
    _pip("download", *options, *platforms, wanted)


def _pip(command: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", command, *arguments], check=True
    )


if __name__ == "__main__":
    main()

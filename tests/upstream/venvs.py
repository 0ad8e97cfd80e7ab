"""The environments of upstreams' tests: a venv for each list of pinned requirements, which later runs use again."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unhang.errors import UnhangError

REQUIREMENTS = Path(__file__).parent / "environments"
_PROBE = (
    "import json, platform, torch; print(json.dumps({'python': platform.python_version(), "
    "'torch': torch.__version__, 'gpus': torch.cuda.device_count()}))"
)


class Environment(NamedTuple):
    """An interpreter with the imports of an upstream's tests."""

    python: Path
    versions: str
    """The versions of Python and torch, and the requirements file."""
    gpus: int


def ready(entry: Mapping[str, Any], torch: str, folder: Path) -> Environment:
    """Return the environment of an entry in releases.json, and create it if it is missing.

    Everything but torch is installed with --no-deps, so that no package brings another torch. Raises UnhangError
    ``no-interpreter`` or ``not-installable``.
    """
    requirements = REQUIREMENTS / entry["requirements"]
    wanted = f"{entry['python']} {torch}\n{requirements.read_text(encoding='utf-8')}"
    place = folder / f"{requirements.stem}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    python, stamp = place / "bin" / "python", place / "unhang-ready"
    if not stamp.exists():
        shutil.rmtree(place, ignore_errors=True)
        base = shutil.which(f"python{entry['python']}")
        if base is None:
            hint = "torch and the requirements are pinned for this Python"
            raise UnhangError("no-interpreter", f"there is no python{entry['python']} on the path", hint=hint)
        _run([base, "-m", "venv", str(place)])
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*install, f"torch=={torch}"])
        _run([*install, "--no-deps", "--requirement", str(requirements)])
        stamp.write_text(wanted, encoding="utf-8")
    about = json.loads(_run([str(python), "-c", _PROBE]))
    versions = f"Python {about['python']}, torch {about['torch']}, {requirements.name}"
    return Environment(python, versions, about["gpus"])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = f"{' '.join(command)}:\n{done.stderr.strip()[-2000:]}"
        raise UnhangError("not-installable", why, hint="a pinned requirement may be gone: tests/upstream/environments")
    return done.stdout

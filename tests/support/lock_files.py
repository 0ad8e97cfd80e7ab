"""Lock files and SBOMs as their tools write them, of made-up projects."""

from pathlib import Path

from unhang.pins import files
from unhang.records import Names, Pin

_DISTRIBUTIONS = frozenset({"verl", "megatron-core", "ms-swift"})
NAMES = Names(_DISTRIBUTIONS, {**{name: name for name in _DISTRIBUTIONS}, "megatron-lm": "megatron-core"})
COMMIT = "bec9ef74768dd201881cd4e54cd0385e87caae27"
"""The commit of verl's tag v0.7.1."""
INDEX = 'registry = "https://index.example/simple"'


def read(path: Path, text: str | bytes) -> tuple[Pin, ...]:
    """Write a file, and return what it pins of three upstreams."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return files.read(str(path), NAMES).pins


def uv(*packages: str) -> str:
    return "\n".join(["version = 1", "revision = 3", "", *packages])


def uv_package(name: str, version: str, source: str = INDEX, *more: str) -> str:
    lines = ["[[package]]", f'name = "{name}"', f'version = "{version}"', f"source = {{ {source} }}", *more]
    return "\n".join([*lines, ""])

"""Makes the README's links absolute: the package index shows it without the repository. All else: pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
(VERSION,) = re.findall('__version__ = "(.+)"', (HERE / "src" / "unhang" / "__init__.py").read_text(encoding="utf-8"))


def absolute(start: "re.Match[str]") -> str:
    """Return the start of a relative link, or picture, with the address of the repository at this version's tag."""
    return f"{start[0]}https://github.com/OWNER/unhang/{'raw' if start[1] else 'blob'}/v{VERSION}/"


readme = (HERE / "README.md").read_text(encoding="utf-8")
setup(
    long_description=re.sub(r"(!?)\[[^]]*\]\((?!\w+:)", absolute, readme),
    long_description_content_type="text/markdown",
)

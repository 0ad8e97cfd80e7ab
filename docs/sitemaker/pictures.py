"""Pictures as part of a page, so that they follow its theme. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from unhang.compat.sweep import drawings

_PICTURE = re.compile(r"!\[[^\]]*\]\((?:[\w./-]*/)?drawings/([\w.-]+)\)")


def with_pictures(text: str, pictures: Mapping[str, str]) -> str:
    """Return a page with the SVG in place of each link to one of these drawings, by the names of their files."""
    return _PICTURE.sub(lambda link: drawings.inline(pictures[link[1]]) if link[1] in pictures else link[0], text)

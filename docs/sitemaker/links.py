"""The links of a page of the repository, as they are on the site. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping

BLOB = "https://github.com/OWNER/unhang/blob/main/"
"""Where a file is that has no page on the site."""
_NAME = re.compile(r"\[[\w./-]+\.md\](?=\((?!https:))")
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=(?:#[^)\s]*)?\))")


def relinked(text: str, path: str, places: Mapping[str, str]) -> str:
    """Return the Markdown of the page at a path of the repository, with the links that its place on the site needs.

    ``places`` has the place of each page and picture by its path in the repository. A link to any other file of the
    repository leads to GitHub; a link to a page on GitHub leads to the site. Where a page is called by its file's name,
    Sphinx fills in its title.
    """
    start = posixpath.dirname(places[path])

    def moved(match: re.Match[str]) -> str:
        link = match[1]
        if link.startswith(BLOB):
            target = link.removeprefix(BLOB)
        elif ":" in link:
            return link
        else:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
        return posixpath.relpath(places[target], start or ".") if target in places else BLOB + target

    return _NAME.sub("[]", _LINK.sub(moved, text))


def with_fixes(text: str, place: str, ids: Iterable[str]) -> str:
    """Return a page of the site with links where it explains a fix, or has a row for it in a table."""
    for name in ids:
        page = posixpath.relpath(f"fixes/{name}.md", posixpath.dirname(place) or ".")
        for found in f"`unhang explain {name}`", f"| `{name}` |":
            word = found.strip("| ")
            text = text.replace(found, found.replace(word, f"[{word}]({page})"))
    return text

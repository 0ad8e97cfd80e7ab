"""The JSON files of fixes and of the matrix: read whole, or one entry of them, where it stands in the text."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from unhang import packs
from unhang.errors import UnhangError

_CURE = (
    "settle it. In compat/, take either side with `git checkout --theirs PATH`; then `nox -s sweep -- --fix ID` writes "
    "compat/data/ID.json anew, and `nox -s sweep` the files of all fixes"
)


class Facts(Mapping[str, Any]):
    """A file of entries, each with a key of its own in the whole file, at any depth. A missing file has none.

    An entry is found by its key, and nothing else is parsed: most of the file is about other releases.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def __getitem__(self, key: str) -> Any:
        at = self._text.find(f'"{key}": ')
        if at < 0:
            raise KeyError(key)
        return _DECODER.raw_decode(self._text, at + len(key) + 4)[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)

    @cached_property
    def whole(self) -> Any:
        """The document. Raises UnhangError as ``parsed`` does."""
        return parsed(self.path, self._text)

    @cached_property
    def _text(self) -> str:
        try:
            return packs.read(self.path).decode()
        except (FileNotFoundError, NotADirectoryError):  # a fix that was never swept
            return "{}"


class Checked(Facts):
    """The facts of a fix of a pack: what is read of them is as the schema wants it, or UnhangError ``bad-pack``."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        packs.check(self.path, value, _part(packs.schema("facts")["properties"], key))
        return value

    @cached_property
    def whole(self) -> Any:
        """The document."""
        return packs.checked_file(self.path, "facts") if os.path.lexists(self.path) else {}

    @cached_property
    def _text(self) -> str:
        try:
            text = packs.read(self.path).decode()
        except (OSError, UnicodeDecodeError):  # `whole` says what is wrong with it
            return json.dumps(self.whole)
        # an entry is looked for as `json.dumps` writes it: a file that is written in another way is read whole
        return text if '"schema": 1' in text else json.dumps(self.whole)


def _part(properties: Any, key: str) -> Any:
    """Return the schema of an entry of a fix's facts: of the file's top level, or of the releases, files or shapes."""
    if key in properties:
        return properties[key]
    digest = key.partition(" ")[2]
    is_shape = len(digest) == 16 and not {*digest} - {*"0123456789abcdef"}
    return properties["shapes" if is_shape else "releases" if digest else "files"]["additionalProperties"]


_DECODER = json.JSONDecoder()


def read(path: str) -> Any:
    """Return the document of a JSON file. Raises UnhangError as ``parsed`` does."""
    with open(path, encoding="utf-8") as file:
        return parsed(path, file.read())


def parsed(path: str, text: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return the document in the text of a file; ``pairs`` makes its objects.

    Raises UnhangError ``conflict-markers`` if git left some in it, else ValueError.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except ValueError:
        if "\n<<<<<<< " in f"\n{text}":
            raise UnhangError("conflict-markers", "git left conflict markers in it", path=path, hint=_CURE) from None
        raise

"""The finder of an editable install that setuptools writes: read as data, because its code is always the same."""

from __future__ import annotations

import hashlib
import os
import re
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_LINE = re.compile(r"import (__editable___\w+_finder); \1\.install\(\)\s*", re.ASCII)
_VALUE = re.compile(r"^(MAPPING|NAMESPACES|PATH_PLACEHOLDER)(: [\w\[\], ]+)? = (.*)$", re.MULTILINE)
_CODES = {  # the sha256 of a finder without its values: whether its namespaces have the placeholder too
    "567e9653639bc9567be9a95d33db89bac27d1621d9d42c70a644bf5c0a724873": False,  # 68
    "73c2612efdd3b493e3fde9247592f68b80bf26d21f160a8a86ba710c4f5b44ce": True,  # 70
    "a2201fce545214c54c9414e399964a09a18203223a6c8b6c5ceb2b1a16fcba83": True,  # 71 to 82 at least
}


class Finder(NamedTuple):
    """What a finder knows."""

    mapping: dict[str, str]
    """The folder, or the file without its suffix, of each top-level module."""
    namespaces: dict[str, list[str]]
    placeholder: str
    """The entry of the path that stands for its namespaces; empty if it has none."""
    on_path: Any

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module, as the finder on ``sys.meta_path`` does."""
        if name in self.mapping:
            place = self.mapping[name]
            files = ((os.path.join(place, "__init__.py"), [place]), (f"{place}.py", None))
            return next((_spec(name, file, inside) for file, inside in files if os.path.exists(file)), None)
        above = name.rpartition(".")[0]
        if above in self.mapping:
            found: ModuleSpec | None = self.on_path.find_spec(name, [self.mapping[above]])
            return found
        return None

    def namespace(self, name: str) -> ModuleSpec | None:
        """Return the spec of a namespace package, as the finder of the path's entry does."""
        if name not in self.namespaces:
            return None
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = self.namespaces[name]
        return spec


def _spec(name: str, file: str, inside: list[str] | None) -> ModuleSpec:
    spec = ModuleSpec(name, SourceFileLoader(name, file), origin=file)
    spec.has_location = True
    spec.submodule_search_locations = inside
    return spec


def module_of(line: str) -> str | None:
    """Return the module with a finder that a line of a .pth file installs."""
    found = _LINE.fullmatch(line)
    return found[1] if found else None


def moved(text: str, move: Callable[[str], str]) -> str:
    """Return the text of a finder with its places moved; empty if it is not one that ``read`` returns."""
    if (known := _values(text)) is None:
        return ""
    now = {
        "MAPPING": {name: move(place) for name, place in known.mapping.items()},
        "NAMESPACES": {name: [*map(move, places)] for name, places in known.namespaces.items()},
    }
    return _VALUE.sub(lambda it: f"{it[1]}{it[2] or ''} = {now[it[1]]!r}" if it[1] in now else it[0], text)


def places(text: str) -> list[tuple[str, str]]:
    """Return the module names and the folders that the text of a finder has; none if it is no finder."""
    known = _values(text)
    spaces = known.namespaces.items() if known else ()
    return [*known.mapping.items(), *((name, place) for name, all_ in spaces for place in all_)] if known else []


class _Values(NamedTuple):
    mapping: dict[str, str]
    namespaces: dict[str, list[str]]
    name: str
    has_placeholder: bool
    """Whether its namespaces have the placeholder too."""


def _values(text: str) -> _Values | None:
    values = {match[1]: match[3] for match in _VALUE.finditer(text)}
    code = hashlib.sha256(_VALUE.sub(r"\1", text).encode()).hexdigest()
    if code not in _CODES or len(values) != 3:
        return None
    import ast  # few environments have one

    try:
        mapping, namespaces = (dict(ast.literal_eval(values[name])) for name in ("MAPPING", "NAMESPACES"))
        name = ast.literal_eval(values["PATH_PLACEHOLDER"].removesuffix(' + ".__path_hook__"'))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    texts = [name, *mapping, *mapping.values(), *namespaces]
    for some in namespaces.values():
        texts += some if isinstance(some, list) else [some]
    return _Values(mapping, namespaces, name, _CODES[code]) if all(isinstance(it, str) for it in texts) else None


def read(text: str, on_path: Any) -> Finder | None:
    """Return the finder of a module's text; None if it is not one that setuptools 68 or later has written."""
    if (known := _values(text)) is None:
        return None
    mapping, namespaces, name, has_placeholder = known
    if not all(map(_is_plain, mapping.values())) or not (has_placeholder or all(namespaces.values())):
        return None
    placeholder = f"{name}.__path_hook__" if namespaces else ""
    for name, folders in namespaces.items():
        own = folders or ([mapping[name]] if name in mapping else [])
        namespaces[name] = [*own, placeholder] if has_placeholder else folders
    return Finder(mapping, namespaces, placeholder, on_path)


def _is_plain(place: str) -> bool:
    """Return whether a module is where its spelling says, and is not compiled."""
    folder, name = os.path.split(place)
    if os.path.normpath(place) != place or "." in name:
        return False
    try:
        compiled = any(it.startswith(f"{name}.") and not it.endswith(".py") for it in os.listdir(folder))
    except OSError:
        compiled = False
    return os.path.exists(os.path.join(place, "__init__.py")) or not compiled

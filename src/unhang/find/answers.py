"""What the probe answers about one name, and how it is read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from unhang.find import probe
from unhang.plugins import packs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Found = dict[str, Any]  # see `probe.look`

_SPEC: Found = {"origin": {str, None}, "folders": [str]}


def form() -> Found:
    """Return the form of what `probe.look` returns for the upstreams, for `environment.ask`."""
    return {name: {**_SPEC, "others": [_SPEC]} for name in names()}


def names() -> list[str]:
    """Return what is looked for: the upstreams' import names and those of their namespaces, the highest first."""
    return probe.with_those_above([*packs.modules()])


def in_folder(root: str, module: str) -> Found:
    """Return what is in ``root`` itself, in the form of the probe's answer."""
    package = folder(root, module)
    one = packs.modules().get(module)
    init = os.path.join(package, f"{module.rpartition('.')[2]}.py" if one and one.is_file else "__init__.py")
    origin = init if os.path.isfile(init) else None
    folders = [package] if os.path.isdir(package) else []
    return {"origin": origin, "folders": folders, "others": []}


def folder(root: str, module: str) -> str:
    """Return the folder of a module below a folder of the import path."""
    one = packs.modules().get(module)
    return os.path.join(root, *(one.parts if one else module.split(".")))


def place(found: Found) -> str | None:
    """Return the path to name for what was found: the package's folder, or the file of a plain module."""
    origin: str | None = found["origin"]
    if origin and is_regular(found):
        return os.path.dirname(origin)
    return origin or next((portion for portion in found["folders"] if os.path.isdir(portion)), None)


def is_framework(module: str, package: str) -> bool:
    """Return whether a package is the upstream's, and not a namesake."""
    return all(os.path.exists(os.path.join(package, mark)) for mark in packs.modules()[module].marks)


def closed_to_us(module: str, found: Mapping[str, Found]) -> str | None:
    """Return a path that we may not look at, if it may be the package's: then nobody can tell what is there."""
    above, _, name = module.rpartition(".")
    folders = [os.path.join(folder, name) for folder in found[above]["folders"]] if above else found[module]["folders"]
    paths = [os.path.join(folder, mark) for folder in folders for mark in packs.modules()[module].marks]
    return next(filter(_is_refused, paths), None)


def is_closed(folder: str) -> bool:
    """Return whether there is a folder that we may not search or not list."""
    return not os.access(folder, os.R_OK | os.X_OK) and (os.path.isdir(folder) or _is_refused(folder))


def _is_refused(path: str) -> bool:
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def is_regular(found: Found) -> bool:
    """Return whether a package with an __init__ file was found."""
    return bool(found["origin"] and found["folders"])


def is_installed(module: str, found: Found) -> bool:
    """Return whether the upstream's own package was found."""
    is_one = bool(found["origin"]) and packs.modules()[module].is_file
    return (is_regular(found) or is_one) and is_framework(module, os.path.dirname(found["origin"]))


def hidden(module: str, found: Found) -> tuple[str, ...]:
    """Return the folders of the upstream's other copies, each once."""
    seen = {os.path.realpath(os.path.dirname(found["origin"]))} if found["origin"] else set()
    copies = []
    for other in found["others"]:
        if is_installed(module, other):
            package = os.path.dirname(other["origin"])
            if (real := os.path.realpath(package)) not in seen:
                seen.add(real)
                copies.append(package)
    return tuple(copies)

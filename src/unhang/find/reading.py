"""Reads from its files what an interpreter starts with: what it would answer to `probe`, without running any of it.

Either that is known exactly, or there is a reason to ask the interpreter. It reads CPython on Linux, as `venv`,
virtualenv, uv, conda, pyenv, Debian and a build from source lay it out.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from importlib.machinery import ExtensionFileLoader, FileFinder, ModuleSpec, SourceFileLoader, SourcelessFileLoader
from typing import TYPE_CHECKING, NamedTuple

from unhang.find import editable, probe
from unhang.find.metadata import names as names_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from typing import Any

_KNOWN = range(8, 15)
"""The minor versions of Python 3 whose start is known."""
_SMALL = 1 << 20  # bytes of a file that is read here
_LINKS = 40  # as many as Linux follows
_ELF = b"\x7fELF"
_OTHER_SITE = ("RPM_BUILD_ROOT", '"/usr/local"', "'/usr/local'")
"""What the ``site.py`` of distributions with folders of their own has; Debian's are known."""
# What setuptools and virtualenv put into site-packages: it changes how distutils is imported, and nothing else.
_HARMLESS = re.compile(
    r"import _virtualenv\s*|import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os\.environ\.get\(var, '\w+'\) == "
    r"'local'; enabled and __import__\('_distutils_hack'\)(\.add_shim\(\))?;?\s*",
    re.ASCII,
)
# What setuptools before 70 wrote for a namespace package: it makes a module when Python starts.
_NAMESPACE = re.compile(
    r"import sys, types, os;\s*has_mfs = [^;]*;\s*p = os\.path\.join\([^;]*\*\('(\w+)',[^;]*\);\s*importlib = [^;]*;\s*"
    r"has_mfs and [^;]*;\s*m = [^;]*;\s*m = [^;]*;\s*mp = [^;]*;\s*\(p not in mp\) and mp\.append\(p\)"
    r"(;\s*m and [^;]*)?\s*",
    re.ASCII,
)
# Debian's and Ubuntu's own start-up module: it replaces `sys.excepthook`.
_APPORT = "try:importapport_python_hookexceptImportError:passelse:apport_python_hook.install()"


class MustAsk(Exception):
    """Why only the interpreter itself can tell what it imports."""


class Start(NamedTuple):
    """What an isolated interpreter has once it has started."""

    prefix: str
    """Its ``sys.prefix``."""
    path: list[str]
    imports: probe.Imports
    tag: str
    """What names its bytecode, such as ``cpython-312``."""
    user_site: str
    """The user's site-packages, which a job has too; empty if it has none."""
    later: list[str]
    """The folders that come after these."""
    customizer: str | None
    """Its ``sitecustomize``."""


def start(python: str, names: Collection[str]) -> Start:
    """Return what an interpreter starts with, as far as the import of these modules goes. Raises MustAsk."""
    try:
        return _start(_layout(python), {name.partition(".")[0] for name in names})
    except OSError as error:
        raise MustAsk(f"{error.filename}: {error.strerror}") from error
    except ValueError as error:  # not text, or a NUL in a path
        raise MustAsk(f"a file is not plain text: {error}") from error


def of_a_job(start: Start, script_folder: str) -> tuple[list[str], list[str]]:
    """Return as ``probe.job_path``."""
    path = start.path
    with_code: list[str] = []
    if start.user_site:
        path, with_code = probe.with_user_site(path, start.user_site, start.later)
    customizers = probe.CUSTOMIZERS if start.user_site else probe.CUSTOMIZERS[:1]
    path, files = probe.with_python_path(path, customizers, [start.customizer], start.imports.on_path)
    return probe.in_order(script_folder, path), [*files, *with_code]


def bytecode(start: Start) -> tuple[str | None, str]:
    """Return as ``probe.bytecode``."""
    prefix = os.environ.get("PYTHONPYCACHEPREFIX")
    return os.path.abspath(prefix) if prefix else None, start.tag


# --- where its files are


class _Layout(NamedTuple):
    minor: int
    base: str
    """``sys.base_prefix``."""
    environment: str | None
    """The folder of a virtual environment."""
    has_system: bool
    """Whether it has the site-packages of the base too."""
    suffix: str
    """That of extension modules for this interpreter alone."""
    is_debian: bool

    @property
    def stdlib(self) -> str:
        return f"{self.base}/lib/python3.{self.minor}"

    @property
    def prefixes(self) -> list[str]:
        """As ``site.PREFIXES``."""
        own = [self.environment] if self.environment else []
        return [*own, self.base] if self.has_system else own

    def sites(self, prefixes: Sequence[str]) -> list[str]:
        """Return as ``site.getsitepackages``."""
        version = f"python3.{self.minor}"
        places = ["lib", version, "site-packages"], ["local/lib", version, "dist-packages"]
        debian = [*places[1:], ["lib", "python3", "dist-packages"], ["lib", version, "dist-packages"]]
        of_each = [*(places[:1] if self.environment or not self.is_debian else []), *(debian if self.is_debian else [])]
        return [os.path.join(prefix, *place) for prefix in prefixes for place in of_each]


def _layout(python: str) -> _Layout:
    if sys.platform != "linux":
        raise MustAsk("it is not on Linux")
    folder, program = os.path.dirname(python), _followed(python)
    with open(program, "rb", opener=_opener) as file:
        if file.read(4) != _ELF:
            raise MustAsk(f"{program} is a script")
    environment, home, values = os.path.dirname(folder), os.path.dirname(program), {}
    if os.path.lexists(f"{folder}/pyvenv.cfg"):
        raise MustAsk(f"{folder}/pyvenv.cfg is in an unusual place")
    is_virtual = os.path.lexists(f"{environment}/pyvenv.cfg")
    name = os.path.basename(program)
    if is_virtual:
        values = _settings(f"{environment}/pyvenv.cfg")
        if home != values["home"]:  # a copy
            name = name if re.fullmatch(r"python3\.\d+", name) else f"python{values['version']}"
            home = values["home"]
            if os.path.getsize(program) != os.path.getsize(os.path.join(home, name)):
                raise MustAsk(f"{program} is not that of {home}")
    version = re.fullmatch(r"python(3\.(\d+))", name, re.ASCII)
    if version is None or int(version[2]) not in _KNOWN or values.get("version", version[1]) != version[1]:
        raise MustAsk(f"the version of {program} is not known")
    base, bin_ = os.path.split(home)
    if bin_ != "bin" or base in ("", "/") or os.path.normpath(base) != base:
        raise MustAsk(f"{home} is an unusual place")
    for odd in (f"{home}/pybuilddir.txt", f"{home}/Modules", f"{home}/lib", f"{base}/lib/python3{version[2]}.zip"):
        if os.path.lexists(odd):
            raise MustAsk(f"there is {odd}")
    for path in {python, program}:
        if os.path.lexists(f"{path}._pth") or os.path.lexists(f"{path.rpartition('.')[0] or path}._pth"):
            raise MustAsk("there is a ._pth file")
    stdlib = f"{base}/lib/{name}"
    if not (os.path.isfile(f"{stdlib}/os.py") and os.path.isdir(f"{stdlib}/lib-dynload")):
        raise MustAsk(f"{stdlib} is not a whole standard library")
    site = _text(f"{stdlib}/site.py")
    is_debian = "is_virtual_environment" in site and '"dist-packages"' in site
    if any(word in site for word in _OTHER_SITE) or ("dist-packages" in site and not is_debian):
        raise MustAsk(f"{stdlib}/site.py is not a known one")
    within = environment if is_virtual else None
    has_system = within is None or values["include-system-site-packages"] == "true"
    return _Layout(int(version[2]), base, within, has_system, _suffix(stdlib, f"3{version[2]}"), is_debian)


def _followed(path: str) -> str:
    """Return the file to which a link leads. Links of the folders are not followed, as when Python starts."""
    for _ in range(_LINKS):
        if not os.path.islink(path):
            if os.path.normpath(path) != path:
                break
            return path
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    raise MustAsk(f"{path} is an unusual link")


def _settings(path: str) -> dict[str, str]:
    """Return the home, the version, and the like, of a pyvenv.cfg."""
    found: dict[str, str] = {"include-system-site-packages": "true"}
    seen = set()
    for line in _text(path).splitlines():
        key, has_value, value = line.partition("=")
        key, value = key.strip().lower(), value.strip()
        if has_value and key in ("home", "version", "version_info", "include-system-site-packages"):
            if key in seen:
                raise MustAsk(f"{path} has two of {key}")
            seen.add(key)
            if key.startswith("version"):
                key, value = "version", ".".join(value.split(".")[:2])
            found[key] = value.lower() if key == "include-system-site-packages" else value
    if not os.path.isabs(found.get("home", "")) or "version" not in found:
        raise MustAsk(f"{path} does not say whose it is")
    return found


def _suffix(stdlib: str, version: str) -> str:
    """Return the suffix of extension modules, which the build of a CPython has left on record."""
    said: set[str] = set()
    for name in os.listdir(stdlib):
        if name.startswith("_sysconfigdata__") and name.endswith(".py"):
            text = _text(os.path.join(stdlib, name))
            said |= set(re.findall(r"'(?:EXT_SUFFIX|PLATLIBDIR)': '([^']*)'", text))
    said.discard("lib")
    if len(said) != 1 or not re.fullmatch(rf"\.cpython-{version}-[\w-]+\.so", suffix := said.pop(), re.ASCII):
        raise MustAsk(f"{stdlib} is not that of a plain CPython")
    return suffix


# --- what it does with them


def _start(layout: _Layout, tops: Collection[str]) -> Start:
    on_path = _OnPath(layout.suffix)
    started = _Started([f"{layout.base}/lib/python3{layout.minor}.zip", layout.stdlib, f"{layout.stdlib}/lib-dynload"])
    for site in layout.sites(layout.prefixes):
        for top in started.add_site(site, on_path):
            if top in tops:
                raise MustAsk(f"{site} makes the package {top} when Python starts")
    finders: list[Any] = [on_path, *started.finders]
    own = next((spec for finder in finders if (spec := finder.find_spec("sitecustomize", started.path))), None)
    if own and own.origin and "".join(_code(own.origin).split()) != _APPORT:
        raise MustAsk(f"{own.origin} runs when it starts")
    others = layout.prefixes[1 if layout.environment else 0 :]
    user_site = _user_site(layout.minor) if others and probe.may_have_user_site() else ""
    imports = probe.Imports(finders, on_path, {})
    prefix, tag = layout.environment or layout.base, f"cpython-3{layout.minor}"
    return Start(prefix, started.path, imports, tag, user_site, layout.sites(others), own.origin if own else None)


def _user_site(minor: int) -> str:
    base = os.environ.get("PYTHONUSERBASE") or os.path.expanduser(os.path.join("~", ".local"))
    return f"{base}/lib/python3.{minor}/site-packages"


def _code(path: str) -> str:
    """Return the lines of a file but comments."""
    return "\n".join(line for line in _text(path).splitlines() if not line.lstrip().startswith("#"))


class _Started:
    """The import path and the finders, as they come about."""

    def __init__(self, path: list[str]) -> None:
        self.path = path
        self.finders: list[editable.Finder] = []

    def add_site(self, folder: str, on_path: _OnPath) -> Iterator[str]:
        """Add a site-packages and what its .pth files add. Yield the packages that these make by code."""
        folder = os.path.abspath(folder)
        if not os.path.isdir(folder):
            return
        self._add(folder)
        for name in sorted(names_in(folder)):
            if name.endswith(".pth"):
                if name.startswith("."):
                    raise MustAsk(f"{folder}/{name} counts in some versions")
                yield from self._add_pth(folder, name, on_path)

    def _add(self, entry: str) -> None:
        if entry not in self.path:
            self.path.append(entry)

    def _add_pth(self, folder: str, name: str, on_path: _OnPath) -> Iterator[str]:
        path = os.path.join(folder, name)
        try:
            text = _text(path)
        except (FileNotFoundError, PermissionError):  # Python ignores it
            return
        if not text.isascii() or re.search(r"[^\t\n\r -~]", text):
            raise MustAsk(f"{path} is not plain text")
        for line in text.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if not line.startswith(("import ", "import\t")):
                entry = os.path.abspath(os.path.join(folder, line.rstrip()))
                if os.path.exists(entry):
                    self._add(entry)
            elif made := _NAMESPACE.fullmatch(line):
                yield made[1]
            elif not _HARMLESS.fullmatch(line):
                self._add_finder(path, line, on_path)

    def _add_finder(self, pth: str, line: str, on_path: _OnPath) -> None:
        module = editable.module_of(line)
        spec = on_path.find_spec(module, self.path) if module else None
        finder = editable.read(_text(spec.origin), on_path) if spec and spec.origin else None
        if finder is None:
            raise MustAsk(f"{pth} runs code when it starts")
        if finder not in self.finders:
            self.finders.append(finder)
            if finder.placeholder:
                self._add(finder.placeholder)
                on_path.hooks[finder.placeholder] = finder


class _OnPath:
    """Finds as ``PathFinder`` does, with the suffixes of another interpreter."""

    def __init__(self, suffix: str) -> None:
        self._loaders: list[tuple[Any, list[str]]] = [
            (ExtensionFileLoader, [suffix, ".abi3.so", ".so"]), (SourceFileLoader, [".py"]),
            (SourcelessFileLoader, [".pyc"]),
        ]  # fmt: skip
        self._finders: dict[str, Any] = {}
        self.hooks: dict[str, editable.Finder] = {}
        """Finders by their entries of the path, which are no folders."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module on a path, by default on ``sys.path``, which `probe` sets."""
        path = sys.path if path is None else path
        portions: list[str] = []
        for entry in path:
            spec = self._spec(entry, name)
            if spec is not None and spec.loader is not None:
                return spec
            portions += (spec and spec.submodule_search_locations) or ()
        if not portions:
            return None
        above, _, tail = name.rpartition(".")
        if above:  # as `probe` has it, where the package above is not imported
            portions = [it for entry in path if os.path.isdir(it := os.path.join(entry, tail))]
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = portions
        return spec

    def _spec(self, entry: str, name: str) -> ModuleSpec | None:
        if entry in self.hooks:
            return self.hooks[entry].namespace(name)
        if entry not in self._finders:
            self._finders[entry] = self._finder(entry)
        finder = self._finders[entry]
        return finder.find_spec(name) if finder is not None else None

    def _finder(self, entry: str) -> Any:
        if os.path.isdir(entry):
            return FileFinder(entry, *self._loaders)
        if not os.path.exists(entry) and ".zip" not in entry and ".egg" not in entry:
            return None
        import zipimport  # few paths have an archive

        try:
            return zipimport.zipimporter(entry)
        except zipimport.ZipImportError:
            return None


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would wait for ever


def _text(path: str) -> str:
    """Return the text of a file. Raises MustAsk for what is no small file."""
    with open(path, "rb", opener=_opener) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > _SMALL:
            raise MustAsk(f"{path} is not a small file")
        return file.read(_SMALL).decode()

"""The plain immutable records that one room hands to the next."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

STATE = ".unhang"
"""The name of the folder, in each root that is written, that holds the receipt, the journal and the lock."""
KINDS = ("hang", "abort", "wrong-values")
"""What a defect does to a job."""


class Token(NamedTuple):
    """A person's word for one rewrite of an unknown shape, whose diff they have seen."""

    shape: str
    """The unknown shape; ``paired`` with that of the function that it depends on, if that one is unknown."""
    generation: int
    """The generation of the rewrites (``catalog.generation``)."""
    result: str
    """The shape that the rewrite gives, ``paired`` as the unknown shape is; the same if nothing is rewritten."""
    seen_right: bool = False
    """Whether ``diff --unknown --run`` saw the rewrite cure the function. A note for people: no verdict rests on it."""

    @property
    def as_is(self) -> bool:
        """Whether it accepts a function as it is."""
        return self.shape == self.result

    def __str__(self) -> str:
        """Return the token as ``--accept`` takes it.

        Its last part depends on all three, so that it names the result only together with the first two: of the shape
        before, nothing is left once the rewrite is in place. A rewrite that was seen right adds ``mark``.
        """
        plain = f"{self.shape}-{self.generation}-{self.mixed().result}"
        return f"{plain}-{self.mark}" if self.seen_right else plain

    @property
    def mark(self) -> str:
        """Return what a token ends with whose rewrite was seen right: it fits this token alone."""
        from hashlib import sha256

        return sha256(f"seen right: {self.shape}-{self.generation}-{self.result}".encode()).hexdigest()[:8]

    def mixed(self) -> Token:
        """Return the token with its result mixed with the rest; twice gives the token again."""
        from hashlib import sha256  # few runs have a token

        rest = sha256(f"{self.shape}-{self.generation}".encode()).hexdigest()[:16]
        return self._replace(result=f"{int(self.result, 16) ^ int(rest, 16):016x}")


def normal(name: str) -> str:
    """Return the name of a distribution, or of its .dist-info folder, in its normal form.

    It is that of ``packaging.utils``, which is slow to import.
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def paired(shape: str, beside: str | None) -> str:
    """Return what a token has of a shape: itself, or a digest of it and the unknown shape of another function."""
    if beside is None:
        return shape
    from hashlib import sha256

    return sha256(f"{shape} {beside}".encode()).hexdigest()[:16]


class Request(NamedTuple):
    """What the user asked for, made once from the command line."""

    python: str | None = None
    """``--python``: an interpreter, an environment's folder, or a command on PATH."""
    target: str | None = None
    """``--target``: a site-packages folder, without an interpreter."""
    source: str | None = None
    """``--source``: a checkout."""
    script: str | None = None
    """``--script``: the script whose folder comes first on the path."""
    fixes: tuple[str, ...] = ()
    """The ids of the fixes to look at, the required ones included."""
    required: tuple[str, ...] = ()
    """The ids of the fixes that must be in place, or not needed."""
    upstreams: tuple[str, ...] = ()
    """The names of the upstreams to look at; empty for all."""
    allow_none: bool | None = False
    """Whether finding no upstream at all is fine."""
    skipped: tuple[str, ...] = ()
    """``--skip``: the ids of the fixes that are to be left out."""
    companions: tuple[str, ...] = ()
    """The ids of the fixes that come along where one of ``fixes`` needs them."""
    job: Any = None
    """``--job`` and ``--setting``: what the job is started with, a ``job.settings.Job``; None if nothing was said."""
    even_if: tuple[str, ...] = ()
    """``--even-if``: the conditions of ``leave-out`` under which a fix is written all the same."""
    accepted: tuple[Token, ...] = ()
    """``--accept``: the rewrites of unknown shapes to write, and to count as settled."""
    as_imported: bool = False
    """Whether to judge the modules of an overlay on PYTHONPATH, as a job imports them, or the originals."""
    locks: tuple[str, ...] = ()
    """``--lock``: the lock files and SBOMs to judge, in place of an environment."""
    evidence: tuple[str, ...] = ()
    """The files and folders that ``diagnose`` reads: no environment is taken from there."""
    overlay: str | None = None
    """``overlay --check``: an overlay that the job has first on PYTHONPATH."""
    chosen: tuple[tuple[str, str], ...] = ()
    """The options that chose fixes and upstreams, or accept, as given, such as ``("--skip", ID)``: a suggested command
    repeats them."""
    writer: tuple[str, ...] = ("apply",)
    """The command that brings the fixes into place, with its own arguments: ``overlay DIR``, ``wheel REQ -o DIR``."""
    image: str | None = None
    """``--image``: an image; then ``python``, ``target`` and ``source`` name what is in it."""

    def is_about(self, upstream: str) -> bool:
        """Return whether the upstream of this name is one to look at."""
        return not self.upstreams or upstream in self.upstreams


class Environment(NamedTuple):
    """The Python environment, or the folder, that was searched."""

    python: str | None
    """Its interpreter; None for ``--target`` and ``--source``, which have none."""
    prefix: str
    """``sys.prefix`` of that interpreter, or the folder itself."""
    found_by: str
    """What chose it: ``--python``, ``$VIRTUAL_ENV``, ``$CONDA_PREFIX``, ``.venv``, ``own interpreter``,
    ``--target``, ``--source`` or ``--image``."""
    objection: str = ""
    """Why this interpreter, which nobody has named, is not to be run: somebody else could have put it there."""

    @property
    def program(self) -> str | None:
        """The interpreter, if it is there and may be run."""
        return None if self.objection else self.python

    @property
    def told(self) -> dict[str, str | None]:
        """What a document says of it."""
        return {"python": self.python, "prefix": self.prefix, "found_by": self.found_by}

    @property
    def choice(self) -> str:
        """What chose it, in words."""
        return "the Python that runs unhang" if self.found_by == "own interpreter" else f"found by {self.found_by}"


class Pack(NamedTuple):
    """A folder of fixes, and perhaps of upstreams."""

    name: str
    version: str
    folder: str
    """Its real folder; empty for the pack of unhang itself."""

    def __str__(self) -> str:
        """Return name and version, as reports and receipts have them."""
        return f"{self.name} {self.version}"


class Upstream(NamedTuple):
    """A project whose files are rewritten: what its file in ``upstreams/`` says."""

    name: str
    module: str
    """Its import name. What is above it, if it has a dot, is a namespace package."""
    distribution: str
    marks: tuple[str, ...]
    """What its package's folder has, and a namesake's has not."""
    version: Mapping[str, Any]
    """Where its source states its version: ``file``, below the folder on the import path, and ``names``."""
    within: str | None
    """The upstream whose repository and wheels hold this one too."""
    about: Mapping[str, Any]
    """All of its file."""

    @property
    def above(self) -> str:
        """The namespace package that holds it; empty if none does."""
        return self.module.rpartition(".")[0]

    @property
    def parts(self) -> list[str]:
        """The names of the folders that lead to its package, or to the module that it is."""
        return self.module.split(".")[: -1 if self.is_file else None]

    @property
    def is_file(self) -> bool:
        """Whether it is no package, but a module of one file."""
        return "one-file" in self.about

    def holds(self, file: str) -> bool:
        """Return whether a file, by its path below the folder on the import path, is of its package."""
        path = self.module.replace(".", "/")
        return file == f"{path}.py" if self.is_file else file.startswith(f"{path}/")

    @property
    def width(self) -> int:
        """How many columns a line of its files has at most."""
        return int(self.about.get("line-length", 120))

    @property
    def dist_info(self) -> str:
        """What the name of its .dist-info folder begins with."""
        return self.distribution.replace("-", "_")


class Names(NamedTuple):
    """The distributions that are looked for in a lock file."""

    distributions: frozenset[str]
    """Their normal names."""
    checkouts: Mapping[str, str]
    """The distribution that is built from a repository or a folder, by the normal name of that."""


class Pin(NamedTuple):
    """One package in a lock file or an SBOM."""

    distribution: str
    """Its name, normalised."""
    version: str = ""
    """As it stands there; empty if the file has none."""
    line: int = 1
    extras: tuple[str, ...] = ()
    """Those of its own extras that are asked for."""
    when: str = ""
    """The marker, or the extras and groups of the project, without which it is not installed; empty if it always is."""
    repository: str = ""
    """The URL of the repository, for what is built from a commit."""
    ref: str = ""
    """The tag or branch; without a repository, the versions that are allowed, where none is pinned."""
    commit: str = ""
    source: str = ""
    """The folder or the file that it comes from, unless that is an index; the folder in a repository."""

    @property
    def told(self) -> str:
        """What a report says of it, besides its name and version."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        names = [self.commit[:9], f"({self.ref})" if self.commit and self.ref else self.ref]
        kind, plus, _ = self.repository.partition("+")
        git = " ".join(filter(None, (kind if plus and "/" not in kind else "git", *names))) if self.repository else ""
        return "; ".join(filter(None, (extras, git, self.source, self.when)))


class Installation(NamedTuple):
    """One copy of an upstream that the environment's ``import`` would use."""

    upstream: str
    """Its name, as that of ``Upstream``."""
    version: str | None
    """Parsed from the source, never imported; None where the source does not state it."""
    root: str
    """The folder on the import path that holds the package: site-packages, or the top of a source tree."""
    real_root: str
    """The real folder that holds the package's files, all links resolved: what is written to, and keeps the state."""
    package_dir: str
    """The folder of the package itself, such as ``<root>/megatron/core``."""
    kind: str
    """``wheel`` (a RECORD lists its files), ``editable`` or ``source``."""
    record: str | None
    """The RECORD file that lists the package's files, if there is one."""
    shadowed: tuple[str, ...]
    """Other copies (package folders) on the path, which this one hides from ``import``."""
    pin: Pin | None = None
    """What a lock file says of it: then it is installed nowhere, and its root is that file."""


class Search(NamedTuple):
    """The environment, its installations, and what the user should know about them."""

    environment: Environment
    installations: tuple[Installation, ...]
    warnings: tuple[str, ...]
    roots: tuple[str, ...] = ()
    """The real folders that hold the installations, and those on the import path that have a state folder."""
    pycache_prefix: str | None = None
    """``sys.pycache_prefix`` of the interpreter."""
    path: tuple[str, ...] = ()
    """The folders that were searched, in order."""
    packages: Mapping[str, str] = {}
    """By name, the folders of the other packages that were asked for and are there."""
    overlays: tuple[str, ...] = ()
    """The folders of the overlays that a job uses, first the one that wins; empty if the originals are judged."""
    cache_tag: str | None = None
    """What names the interpreter's bytecode, such as ``cpython-312``; empty if it keeps none, None without one."""
    closed: tuple[tuple[str, str], ...] = ()
    """The upstreams that may be there or not, each with a path that we may not look at."""

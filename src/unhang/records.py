"""The words of the design, as plain immutable records: what the other modules pass to each other."""

from __future__ import annotations

from typing import NamedTuple


class Environment(NamedTuple):
    """The Python environment, or the folder, that was looked at."""

    python: str | None
    """The interpreter that was asked; None for ``--target`` and ``--source``, which have none."""
    prefix: str
    """``sys.prefix`` of that interpreter, or the folder itself."""
    found_by: str
    """What chose it: ``--python``, ``$VIRTUAL_ENV``, ``$CONDA_PREFIX``, ``.venv``, ``own interpreter``,
    ``--target`` or ``--source``."""
    state_dir: str
    """Where the receipt, the journal and the lock live: ``<prefix>/share/unhang`` or ``<folder>/.unhang``."""


class Installation(NamedTuple):
    """One copy of an upstream that the environment's ``import`` would use."""

    upstream: str
    """``megatron-core``, ``megatron-lm``, ``verl`` or ``ms-swift``."""
    version: str | None
    """Parsed from the source, never imported; None where the source does not say."""
    root: str
    """The folder on the import path that holds the package: site-packages, or the top of a source tree."""
    package_dir: str
    """The folder of the package itself, such as ``<root>/megatron/core``."""
    kind: str
    """``wheel`` (a RECORD lists its files), ``editable`` or ``source``."""
    record: str | None
    """The RECORD file that lists the package's files, where there is one."""
    shadowed: tuple[str, ...]
    """Other copies (package folders) on the path, which this one hides from ``import``."""


class Search(NamedTuple):
    """What looking found: the environment, its installations, and what the user should know besides."""

    environment: Environment
    installations: tuple[Installation, ...]
    warnings: tuple[str, ...]

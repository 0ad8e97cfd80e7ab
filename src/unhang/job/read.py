"""What a job is started with, read from what its user has at hand. Nothing is executed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from unhang.errors import UnhangError
from unhang.job import documents, launch, shell
from unhang.job.settings import Job, Setting, parsed
from unhang.job.words import NoShellError, Variables, Word, expanded

LARGEST = 4 << 20
"""Bytes of a file."""
MOST = 50
"""Commands of a job."""
_HINT = (
    "give the shell script that starts the job, its YAML or JSON config, `-` for a command on stdin, pid:NUMBER for a "
    "process, or --setting NAME=VALUE"
)
_OF_PROCESS = ("WORLD_SIZE", "NPROC_PER_NODE", "NNODES")
_SBATCH = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks_per_node": ("SLURM_NTASKS_PER_NODE",),
    "gpus_per_node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}
_SHORT = {"N": "nodes", "n": "ntasks"}


def job(files: Sequence[str], settings: Sequence[str], stdin: IO[str] | None = None) -> Job:
    """Return what a job is started with.

    ``files`` are those that ``--job`` names: shell scripts in the order in which the shell reads them, YAML and JSON;
    ``-`` for ``stdin`` and ``pid:1234`` for a process. ``settings`` are ``NAME=VALUE``, which win over all. Raises
    UnhangError ``bad-job``, ``no-job-reader``, ``unreadable``, and ``bad-option`` for a setting.
    """
    given = dict(_given(settings))
    scripts, documents_ = list[tuple[str, str]](), dict[str, dict[str, Setting]]()
    parts: list[Job] = []
    for file in files:
        if file.startswith("pid:"):
            parts.append(_process(file))
            continue
        text = _text(file, stdin)
        name = "stdin" if file == "-" else os.path.basename(file)
        if file.endswith((".yaml", ".yml", ".json")) or re.match(r"\s*\{\s*[\"}]", text):
            documents_[name] = _document(file, name, text)
        elif file.endswith((".py", ".ipynb", ".toml")):
            raise _bad(file, f"what {os.path.splitext(file)[1]} files say is not read")
        else:
            scripts.append((file, text))
    notes: list[str] = []
    parts += _of_scripts(scripts, tuple(documents_), notes)
    whole = {name: setting for document in documents_.values() for name, setting in document.items()}
    parts = [_with(part, whole, given) for part in parts or [Job()]]
    firsts: dict[object, Job] = {}
    for part in parts:
        firsts.setdefault(_content(part), part)
    parts = [*firsts.values()]
    first = parts[0]
    if len(parts) == 1:
        return first._replace(notes=(*notes, *first.notes))
    return Job(
        {name: setting for part in reversed(parts) for name, setting in part.settings.items()},
        {name: why for part in reversed(parts) for name, why in part.unknown.items()},
        first.ranks if all(part.ranks == first.ranks for part in parts) else None,
        tuple(dict.fromkeys((*notes, *(note for part in parts for note in part.notes)))),
        parts=tuple(parts),
    )


def _content(part: Job) -> tuple[object, ...]:
    """Return what a job is, wherever it was found."""
    values = frozenset((name, str(setting.value)) for name, setting in part.settings.items())
    return part.program, values, frozenset(part.unknown), part.ranks and part.ranks.value, bool(part.rest)


def _with(part: Job, whole: Mapping[str, Setting], given: Mapping[str, Setting]) -> Job:
    """Return a job with the settings of documents below its own, and those of ``--setting`` above."""
    settings = {**{name: it for name, it in whole.items() if name not in part.unknown}, **part.settings, **given}
    unknown = {name: why for name, why in part.unknown.items() if name not in given}
    return part._replace(settings=settings, unknown=unknown, ranks=given.get("ranks", part.ranks))


def _given(settings: Sequence[str]) -> Iterator[tuple[str, Setting]]:
    for each in settings:
        name, equals, value = each.partition("=")
        name = name.strip().lstrip("+")
        if not name or not equals:
            hint = (
                "write it as --setting tensor_model_parallel_size=4, or --setting actor_rollout_ref.actor.strategy=fsdp"
            )
            raise UnhangError("bad-option", f"--setting {each!r} gives no name a value", hint=hint)
        if " " not in name:
            name = name.lstrip("-") if "." in name else name.lstrip("-").replace("-", "_")
        yield name, Setting(parsed(value), "--setting")


def _document(file: str, name: str, text: str) -> dict[str, Setting]:
    try:
        found = documents.of_json(text) if text.lstrip()[:1] == "{" else documents.yaml(text)
        return documents.flat(found, name)
    except documents.BadDocumentError as error:
        raise _bad(file, str(error)) from error


def _of_scripts(scripts: Sequence[tuple[str, str]], names: Sequence[str], notes: list[str]) -> list[Job]:
    """Return what the scripts start; each one finds the variables of those before it."""
    found: list[Job] = []
    variables: Variables = {}
    for file, text in scripts:
        name = "stdin" if file == "-" else os.path.basename(file)
        of_slurm = dict(_of_slurm(text))
        variables.update(of_slurm)
        told: list[str] = []
        try:
            commands = shell.commands(text, variables, told)
        except (NoShellError, RecursionError) as error:
            raise _bad(file, str(error) or "it is nested too deeply") from error
        notes += [f"{name}: {note}" for note in told]
        found += filter(None, (launch.job(command, name, names) for command in commands))
        if len(found) > MOST:
            raise _bad(file, f"it starts over {MOST} programs")
        if not found and len(scripts) == 1:
            words = [word for it in variables.values() for word in it if len(it) > 1]
            words = words or [it for command in commands for it in command.words]
            words = words or [it for value in variables.values() for it in expanded(value[0].text, value[0].line, {})]
            rest = f"{name}: no command in it is known to start a job"
            found = [launch.arguments(words, name, names)._replace(rest=rest)]
            notes.append(rest)
    return found


def _of_slurm(text: str) -> Iterator[tuple[str, tuple[Word, ...]]]:
    """Yield the variables that Slurm sets by the ``#SBATCH`` lines of a script."""
    for number, line in enumerate(text.split("\n"), 1):
        found = re.match(r"#SBATCH\s+--?([\w-]+)[=\s]\s*(\S+)", line)
        if found:
            name, value = found[1].replace("-", "_"), found[2]
            if name == "gres" and (gpus := re.fullmatch(r"gpu(?::[\w.-]+)?:(\d+)", value)):
                name, value = "gpus_per_node", gpus[1]
            for variable in _SBATCH.get(_SHORT.get(name, name), ()):
                yield variable, (Word(value.rpartition(":")[2], number),)


def _process(file: str) -> Job:
    """Return what a process was started with."""
    number = file.removeprefix("pid:")
    if not number.isdecimal():
        raise _bad(file, "it is no number of a process")
    try:
        words = [Word(os.fsdecode(it), 1) for it in _proc(number, "cmdline").split(b"\0")[:-1]]
    except OSError as error:
        raise _bad(file, f"its command line cannot be read: {error.strerror}") from error
    environ: dict[str, Word] = {}
    notes: tuple[str, ...] = ()
    try:
        for line in _proc(number, "environ").split(b"\0"):
            name, _, value = os.fsdecode(line).partition("=")
            if name in _OF_PROCESS:
                environ[name] = Word(value, 1)
    except OSError as error:
        notes = (f"the environment of process {number} cannot be read: {error.strerror}",)
    found = launch.job(shell.Command(tuple(words), environ), file, ())
    if found is None:
        raise _bad(file, "this process is none that starts a job (Ray's workers do not tell; name the driver)")
    size = parsed(environ["WORLD_SIZE"].text) if "WORLD_SIZE" in environ else None
    ranks = Setting(size, f"WORLD_SIZE of {file}") if type(size) is int else found.ranks
    return found._replace(ranks=ranks, notes=(*notes, *(() if ranks else found.notes)))


def _proc(number: str, name: str) -> bytes:
    with open(f"/proc/{number}/{name}", "rb") as file:
        return file.read(LARGEST)


def _text(file: str, stdin: IO[str] | None) -> str:
    """Return the text of a file: a regular one of a bounded size. Raises UnhangError ``bad-job``, ``unreadable``."""
    if file == "-":
        text = stdin.read(LARGEST + 1) if stdin else ""
        if len(text) > LARGEST:
            raise _bad(file, f"it has more than {LARGEST >> 20} MiB")
        return text.replace("\r\n", "\n")
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe would wait for ever
        with open(descriptor, "rb") as opened:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise _bad(file, "it is no regular file")
            data = opened.read(LARGEST + 1)
    except OSError as error:
        why = f"what --job names cannot be read: {error.strerror}"
        raise UnhangError("unreadable", why, path=file, hint=_HINT) from error
    if len(data) > LARGEST:
        raise _bad(file, f"it has more than {LARGEST >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _bad(file, "it is no text in UTF-8") from None
    if "\0" in text:
        raise _bad(file, "it is no text")
    return text.replace("\r\n", "\n")


def _bad(file: str, why: str) -> UnhangError:
    return UnhangError("bad-job", f"what --job names cannot be used: {why}", path=file, hint=_HINT)

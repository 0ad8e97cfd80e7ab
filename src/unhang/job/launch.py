"""What a command starts: the program of a job, its settings, and on how many ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from unhang.job import kinds
from unhang.job.settings import Job, Setting, parsed
from unhang.job.shell import Command
from unhang.job.words import Word, by_default

_STARTS = frozenset(
    "apptainer conda docker enroot env exec kubectl mpiexec mpirun nohup nsys numactl "
    "podman pdsh ray sbatch setsid singularity srun ssh stdbuf sudo taskset time timeout uv".split()
)
_PYTHON = re.compile(r"python[\d.]*|pypy3?")
_LAUNCHERS = (
    "torch.distributed.run", "torch.distributed.launch", "torchrun", "accelerate", "accelerate.commands.launch",
    "deepspeed",
)  # fmt: skip
_FLAGS = frozenset("standalone no_python use_env run_path".split())
"""The options of torchrun that take no value."""
_OVERRIDE = re.compile(r"(~|\+{0,2})([A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^][]*\]|\{[^{}]*\}")
_SWEEP = re.compile(r".*,|(choice|range|interval|glob|shuffle)\(", re.DOTALL)
"""What Hydra takes for several values, each of a run of its own, where it is not in quotes or brackets."""
_LISTS = re.compile(r"ARG|OPT|EXTRA|FLAG|CMD|PARAM|CONF|OVERRIDE", re.IGNORECASE)
"""In the name of a variable that holds several words."""
_FILES = re.compile(r"(?:config|config_file|yaml_cfg|args_file|hydra_config|config_yaml)")
"""The options that name a file with settings."""


class _Start(NamedTuple):
    program: str
    arguments: Sequence[Word]
    launcher: Sequence[Word] | None
    """The words of torchrun, or of its like."""
    before: Sequence[Word]


def job(command: Command, file: str, documents: Sequence[str]) -> Job | None:
    """Return what a command starts; None if it starts no job.

    ``file`` is the name of the file that it is in, ``documents`` are the names of those that were read as settings.
    """
    start = _start(command.words)
    if start is None:
        return None
    found = arguments(start.arguments, file, documents)
    ranks, notes = _ranks(start, command.environ, file)
    return found._replace(program=start.program, ranks=ranks, notes=notes)


def _start(words: Sequence[Word]) -> _Start | None:
    commands = kinds.commands()
    is_started = False  # by what starts modules
    first: Word | None = None
    for at, word in enumerate(words):
        if word.text in ("-m", "--module") and at + 1 < len(words):
            program, last = words[at + 1].text, at + 1
            is_one = is_started and program not in _LAUNCHERS
        elif (name := tuple(_name(it).replace("_", "-") for it in words[at : at + 2])) in commands:
            program, last, is_one = " ".join(name), at + 1, True
        else:
            program, last, is_one = word.text, at, word.text.endswith(".py")
        if is_one:
            before, rest = words[:at], words[last + 1 :]
            launchers = [number for number, it in enumerate(before) if _name(it) in _LAUNCHERS]
            return _Start(program, rest, before[launchers[0] + 1 :] if launchers else None, before)
        is_started = is_started or bool(word.unknown or word.maybe) or _runs_modules(word)
        if first is None and not word.maybe and not re.match(r"\w+=", word.text):
            first = word
            if not (word.unknown or _name(word) in _STARTS or is_started):
                return None
    return None


def _name(word: Word) -> str:
    return word.text.rpartition("/")[2] or word.text


def _runs_modules(word: Word) -> bool:
    return _name(word) in _LAUNCHERS or _name(word) == "uv" or bool(_PYTHON.fullmatch(_name(word)))


def arguments(words: Sequence[Word], file: str, documents: Sequence[str] = ()) -> Job:
    """Return the settings that the arguments of a program give."""
    settings: dict[str, Setting] = {}
    unknown: dict[str, str] = {}
    rest = ""
    for key, values in _pairs(words):
        name = key.lstrip("+")
        source = f"{file}:{values[0].line}"
        open_ = next((it for it in values[1:] if it.open and not it.text), None)
        if not name:  # it stands by itself
            word = values[0]
            if word.unknown:
                rest = rest or f"{source}: {word.unknown}"
            elif word.text.endswith((".yaml", ".yml", ".json")):
                rest = rest or _unread(word.text, source, documents)
            continue
        given = [it for it in values[1:] if it is not open_ or not _holds_several(it)]
        if open_ and open_ not in given:
            rest = rest or f"{source}: {open_.unknown}"
        why = next((it.unknown or it.maybe for it in (values[0], *given) if it.unknown or it.maybe), "")
        settings.pop(name, None)
        unknown.pop(name, None)
        if why:
            unknown[name] = f"{source}: {why}"
            continue
        text = " ".join(it.text for it in given)
        if _OVERRIDE.fullmatch(values[0].raw) and _is_sweep(text):
            unknown[name] = f"{source}: {text} is a sweep over several values"
            continue
        unless = next((it.unless for it in (values[0], *given) if it.unless), "")
        where = f"{source}, unless {unless} is set" if unless else source
        settings[name] = Setting(parsed(text) if given else True, where, key if key != name else "")
        if _FILES.fullmatch(name) and text.endswith((".yaml", ".yml", ".json")):
            rest = rest or _unread(text, source, documents)
    return Job(settings, unknown, rest=rest)


def _is_sweep(value: str) -> bool:
    while (shorter := _QUOTED.sub("", value)) != value:  # the innermost brackets first
        value = shorter
    return bool(_SWEEP.match(value))


def _holds_several(word: Word) -> bool:
    return bool(_LISTS.search(word.unknown.partition(" ")[0]))


def _unread(name: str, source: str, documents: Sequence[str]) -> str:
    base = name.rpartition("/")[2]
    return "" if base in documents else f"{source} reads {base}, which --job does not name"


def _pairs(words: Sequence[Word]) -> Iterator[tuple[str, list[Word]]]:
    """Yield each setting's name, and its word and those of its value; an empty name for a word by itself."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if found := _OVERRIDE.fullmatch(word.raw):
            mark, name, value = found.groups()
            if mark != "~":
                yield mark + name, [word, word._replace(raw=value)]
            continue
        if re.match(r"~[A-Za-z_][\w.]*", word.text):
            yield word.text[1:], [word, word._replace(raw="null")]
            continue
        if not re.match(r"--?[A-Za-z]", word.text):
            yield "", [word]
            continue
        name, equals, value = word.raw.lstrip("-").partition("=")
        values = [word, word._replace(raw=value)] if equals else [word]
        while not equals and at < len(words) and not re.match(r"--?[A-Za-z]", words[at].text):
            if _OVERRIDE.fullmatch(words[at].text):
                break
            values.append(words[at])
            at += 1
        name = word._replace(raw=name).text.replace("-", "_")
        yield {"cn": "config_name", "cp": "config_path", "cd": "config_dir"}.get(name, name), values


def _ranks(start: _Start, environ: Mapping[str, Word], file: str) -> tuple[Setting | None, tuple[str, ...]]:
    """Return the number of ranks that a command starts, and what is to be told of it."""
    nodes, each, kind = None, None, kinds.of(start.program)
    tasks = _tasks(start.before, environ)
    if start.launcher is not None:
        given = dict(_pairs_of_launcher(start.launcher))
        line = start.launcher[0] if start.launcher else Word("", 1)
        nodes = given.get("nnodes") or given.get("num_machines") or line._replace(raw="1")
        each = given.get("nproc_per_node") or given.get("num_gpus") or line._replace(raw="1")
        if (all_ := given.get("num_processes")) is not None:
            nodes, each = all_, all_._replace(raw="1")
    elif kind and len(names := kind.about.get("environ", ())) == 2:
        each = environ.get(names[0])
        nodes = environ.get(names[1]) or (by_default(each._replace(raw="1"), names[1]) if each else None)
    elif tasks is not None:
        nodes, each = tasks, tasks._replace(raw="1")
    if nodes is None or each is None:
        return None, ()
    why = nodes.unknown or each.unknown or nodes.maybe or each.maybe
    numbers = [parsed(it.text) for it in (nodes, each)]
    source = f"{file}:{each.line}"
    if why or not all(type(it) is int and it > 0 for it in numbers):
        return None, (f"{source}: the number of ranks is not known ({why or f'{nodes.text} x {each.text}'})",)
    number = int(nodes.text) * int(each.text)
    unless = nodes.unless or each.unless
    if unless and number == 1:
        return None, (f"{source}: the number of ranks depends on {unless}",)
    return Setting(number, f"{source}, unless {unless} is set" if unless else source), ()


def _pairs_of_launcher(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.text.startswith("-"):
            continue
        name, equals, value = word.raw.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if equals:
            yield name, word._replace(raw=value)
        elif name not in _FLAGS and at < len(words):
            yield name, words[at]
            at += 1


def _tasks(words: Sequence[Word], environ: Mapping[str, Word]) -> Word | None:
    """Return how often srun or mpirun starts what follows."""
    for number, word in enumerate(words):
        if _name(word) in ("srun", "mpirun", "mpiexec"):
            given = dict(_pairs_of_launcher(words[number + 1 :]))
            for name in ("ntasks", "n", "np"):
                if name in given:
                    return given[name]
            each = given.get("ntasks_per_node") or environ.get("SLURM_NTASKS_PER_NODE")
            nodes = given.get("nodes") or given.get("N") or environ.get("SLURM_NNODES")
            if _name(word) == "srun" and each and nodes and not (each.unknown or nodes.unknown):
                if each.text.isdecimal() and nodes.text.isdecimal():
                    return by_default(
                        each._replace(raw=str(int(each.text) * int(nodes.text))), each.unless or nodes.unless
                    )
            return environ.get("SLURM_NTASKS") if _name(word) == "srun" else None
    return None

"""What a job has set, by the names of conditions: its own value, or the default of the installed release.

How an upstream's users start a job, and by which keys they set what, is in ``upstreams/``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from fnmatch import fnmatchcase
from typing import Any

from unhang.errors import closest, is_near
from unhang.job import condition, defaults, kinds
from unhang.job.defaults import Known
from unhang.job.kinds import Kind
from unhang.job.settings import Job, Setting, Value, parsed
from unhang.job.source import Unset
from unhang.records import Installation, normal

_DEEPEST = 20
_WORKED_OUT = "its default is worked out by the code"
_INNER = re.compile(r"\$\{(?:oc\.select:)?\s*(\.*[\w.@/-]+)\s*(?:,(.*))?\}", re.DOTALL)


class View:
    """What is known of one role of a job: a ``condition.Look``."""

    def __init__(
        self, job: Job, kind: Kind | None, role: Mapping[str, Any], known: Known, upstream: str,
        versions: Mapping[str, Setting],
    ) -> None:  # fmt: skip
        self._kind, self._role, self._known, self._versions = kind, role, known, versions
        self._about = kind.about if kind else {}
        opens = [job.settings[name] for name in self._about.get("opens", ()) if name in job.settings]
        self._job = job if job.rest or not opens else job._replace(rest=f"{opens[0].source}: others are set elsewhere")
        self._is_own = kind is not None and kind.is_of(upstream)

    def __call__(self, name: str) -> Setting | None:
        """Return the setting of a name of conditions, ``version NAME``, ``ranks`` or ``program``; None if unknown."""
        return self._found(name)[0]

    @property
    def own(self) -> View:
        """The same, for names of the upstream whose job it is: one that its release does not have is set to nothing."""
        found = copy(self)
        found._is_own = True
        return found

    def why(self, name: str) -> str:
        """Return why a setting is not known; empty if it is."""
        return self._found(name)[1]

    def _found(self, name: str) -> tuple[Setting | None, str]:
        if name.startswith("version "):
            other = name.removeprefix("version ")
            if self._kind and self._kind.runs(other) is None:
                return Setting(None, "the job does not run it"), ""
            return self._versions.get(other), ""
        if name == "program":
            return (Setting(self._job.program, "its command") if self._job.program else None), ""
        if name == "ranks":
            return self._ranks()
        if " " in name or "ranks" in name:
            return self._job.settings.get(name), ""
        if name in self._about.get("instead", {}):
            when, other = self._about["instead"][name]
            if (holds := condition.answer(when, self.own).holds) is not False:
                return self.own._found(other) if holds else (None, f"{other} may stand for it")
        found = self._by_keys(name)
        if other := self._about.get("same", {}).get(name):
            if found[1] == _WORKED_OUT or (found[0] and found[0].value is None):
                return self._found(other)
        return found

    def _ranks(self) -> tuple[Setting | None, str]:
        if self._job.ranks or not (keys := self._about.get("ranks")):
            return self._job.ranks, "" if self._job.ranks else "nothing says how many there are"
        found = [self._value(key, 0) for key in keys]
        for setting, why in found:
            if not setting or type(setting.value) is not int or setting.value < 1:
                return None, why or "nothing says how many there are"
        settings = [it for it, _ in found if it]
        number = math.prod(int(str(it.value)) for it in settings)
        if number == 1 and (unless := next((it.source for it in settings if ", unless " in it.source), "")):
            return None, unless  # a cluster sets it
        return Setting(number, " and ".join(dict.fromkeys(it.source for it in settings)), " * ".join(keys)), ""

    def _by_keys(self, name: str) -> tuple[Setting | None, str]:
        values = {**self._about.get("values", {}), **self._role.get("values", {})}
        keys = list(self._keys(name))
        for key in keys:
            setting, why = self._given(key)
            if setting or why:
                return self._named(setting, name, key), why
        if self._job.rest:
            return None, self._job.rest
        for key in keys:
            setting, why = self._value(key, 0)
            if setting or why:
                return self._named(setting, name, key), why
        if name in values:
            return Setting(values[name], f"{self._kind.upstream if self._kind else 'the code'} sets it so"), ""
        if self._known.is_whole and self._is_own:
            release = self._known.source.removeprefix("default of ")
            return Setting(None, f"{release} has no such setting"), ""
        return None, "its default is not known"

    def _named(self, setting: Setting | None, name: str, key: str) -> Setting | None:
        return setting._replace(key=setting.key or key) if setting and key != name else setting

    def _keys(self, name: str) -> Iterator[str]:
        """Yield the keys by which a job's user sets what a condition names."""
        yield name
        patterns = self._about.get("settings", {})
        for pattern in (*patterns.get(name, ()), *patterns.get("*", ())):
            try:
                yield pattern.format(name=name, **self._role.get("keys", {}))
            except (KeyError, IndexError, ValueError):
                continue  # a role without such a part

    def _given(self, key: str) -> tuple[Setting | None, str]:
        """Return what the job sets a key to, and why that is not known."""
        settings, unknown = self._job.settings, self._job.unknown
        if key in unknown:
            return None, unknown[key]
        if key in settings:
            return self._filled(settings[key], key, 0)
        for option, (dest, value) in self._known.options.items():
            if dest == key and option in unknown:
                return None, unknown[option]
            if dest == key and option in settings:
                mine = settings[option]
                return mine._replace(
                    value=mine.value if value is None else value, key=f"--{option.replace('_', '-')}"
                ), ""
        for above in _above(key):
            if above in unknown or (above in settings and not _is_choice(settings[above].value)):
                return None, unknown.get(above) or f"{settings[above].source}: {above} is set as a whole"
        return None, ""

    def _value(self, key: str, depth: int) -> tuple[Setting | None, str]:
        """Return the value of a key, the job's or its default, or why that is not known; neither without such a key."""
        setting, why = self._given(key)
        if setting or why:
            return setting, why
        if self._job.rest:
            return None, self._job.rest
        values = self._known.values
        if key in values:
            value = values[key]
            if isinstance(value, Unset) or (value is None and self._is_of_model(key)):
                return None, _WORKED_OUT
            return self._filled(Setting(value, self._known.source), key, depth)
        for above in _above(key):  # all of a mapping may be that of another key
            value = values.get(above)
            if isinstance(value, str) and (found := _INNER.fullmatch(value)) and depth < _DEEPEST:
                return self._value(f"{_whole(found[1], above)}{key.removeprefix(above)}", depth + 1)
        return None, ""

    def _is_of_model(self, key: str) -> bool:
        return any(fnmatchcase(key, pattern) for pattern in self._about.get("of-model", ()))

    def _filled(self, setting: Setting, key: str, depth: int) -> tuple[Setting | None, str]:
        """Return a setting with what it refers to in its place."""
        value = setting.value
        if not isinstance(value, str) or "${" not in value:
            return setting, ""
        found = _INNER.fullmatch(value)
        if not found or depth >= _DEEPEST:
            return None, f"{setting.source}: {value} is worked out when the job starts"
        other, why = self._value(_whole(found[1], key), depth + 1)
        if other or why:
            return other, why
        if found[2] is None or not self._known.is_whole:
            return None, f"{setting.source}: {value} is not known"
        return setting._replace(value=parsed(found[2])), ""


def _whole(name: str, key: str) -> str:
    """Return the whole key that a reference in the value of another one names: ``..name`` begins above that."""
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    return ".".join(filter(None, [*key.split(".")[:-dots], name[dots:]]))


def _is_choice(value: Value) -> bool:
    """Return whether a value, of what has settings below it, names a config of a group."""
    return isinstance(value, str) and bool(re.fullmatch(r"[\w./-]+", value))


def _above(key: str) -> Iterator[str]:
    while "." in key:
        key = key.rpartition(".")[0]
        yield key


def looks(job: Job, installations: Sequence[Installation], upstream: str) -> tuple[View, ...]:
    """Return what is known of each command and role of a job that may run the code of an upstream.

    None if the job is known not to run it: then nothing in it can strike.
    """
    found: list[View] = []
    for part, kind in _parts(job):
        runs = kind.runs(upstream) if kind else ""
        if runs is None:
            continue
        known, versions = _known(part, kind, installations), _versions(installations)
        roles = kind.about.get("roles") if kind else None
        for role in roles.values() if roles else ({},):
            view = View(part, kind, role, known, upstream, versions)
            if all(condition.answer(text, view.own).holds is not False for text in (role.get("if"), runs) if text):
                found.append(view)
    return tuple(found)


def told(look: condition.Look, name: str) -> str:
    """Return a setting as its user sets it, with its value and where that is from; or why it is not known."""
    setting = look(name)
    plain = name.removeprefix("version ")
    if setting is None:
        why = look.why(name) if isinstance(look, View) else ""
        return f"{plain} ({why})" if why else plain
    return f"{setting.key or plain}{'=' if plain == name else ' '}{setting.value} ({setting.source})"


def notes(job: Job, installations: Sequence[Installation]) -> tuple[str, ...]:
    """Return what is to be told of a job: what could not be read, and what the installed release does not know."""
    found = list(job.notes)
    for part, kind in _parts(job):
        known = _known(part, kind, installations)
        if known.why and kind and kind.about.get("defaults"):
            found.append(f"the defaults of {kind.upstream} are not known: {known.why}")
        if not kind or not known.is_whole:
            continue
        names = {*known.values, *known.options, "config_name", "config_path", "config_dir"}
        sections = {"", *(above for name in names for above in _above(name))}
        for name, setting in part.settings.items():
            if name in {*names, *sections} or name.rpartition(".")[0] not in sections or setting.key or "@" in name:
                continue
            is_own = not (kind.is_sure or is_near(name, names))  # a program of one's own has settings of its own
            if is_own or (setting.source == "--setting" and "." not in name):
                continue
            section, _, leaf = name.rpartition(".")  # what all of a section have in common makes none of them near
            near = closest(leaf, [it.rpartition(".")[2] for it in names if it.rpartition(".")[0] == section])
            near = f"{section}.{near}".lstrip(".") if near else ""
            hint = f"; did you mean {near}?" if near else ""
            found.append(f"{setting.source}: {known.source.removeprefix('default of ')} has no setting {name}{hint}")
    return tuple(dict.fromkeys(found))


def _parts(job: Job) -> Sequence[tuple[Job, Kind | None]]:
    """Return the commands of a job and what each is; beside one that is known, others prepare something."""
    found = [(part, kinds.of(part.program, (*part.settings, *part.unknown))) for part in job.parts or (job,)]
    return [it for it in found if it[1] and it[1].is_sure] or found


def _known(job: Job, kind: Kind | None, installations: Sequence[Installation]) -> Known:
    if kind is None:
        return Known(why="nothing says which program the job runs")
    mine = next((it for it in installations if it.upstream == kind.upstream), None)
    return defaults.known(kind.about.get("defaults", {}), mine, job)


def _versions(installations: Sequence[Installation]) -> Mapping[str, Setting]:
    """Return the release of each upstream, and of each other distribution beside one, by ``version NAME``."""
    found: dict[str, Setting] = {}
    for root in dict.fromkeys(it.real_root for it in installations if it.pin is None):
        try:
            names = [it.name for it in os.scandir(root)]
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info") and "-" in name:
                project, _, version = name.removesuffix(".dist-info").partition("-")
                found.setdefault(re.sub(r"-(cu\d+|torch|jax)$", "", normal(project)), Setting(version, "installed"))
    for it in installations:
        if it.version:
            found[it.upstream] = Setting(it.version, "installed")
    return found

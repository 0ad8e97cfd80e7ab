"""The fixes (manifests in patches/) and the compat matrix (data in compat/), each read when it is first needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from unhang import gate
from unhang.errors import UnhangError, closest
from unhang.plugins import packs
from unhang.records import Pack
from unhang.shapes.facts import known, lacking, read

GRADES = (
    "cure: the defect is shown on the real function, and gone after the rewrite; "
    "safeguard: only its cause is shown, or a stand-in takes the place of what fails; "
    "unproved: from a diff alone, nobody has shown what it does"
)
UNPROVED = "unproved"
"""The grade of a fix from a diff alone: its result is for exactly the shapes on record."""
"""How a fix is backed, in one line."""
_CLAUSES = ("differ", "types", "shapes")
"""The keys of a signature that say no function, error or symptom: nobody looks for their words."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_swept: dict[str, Mapping[str, Any]] = {}


class Target(NamedTuple):
    """One function in one file of one upstream that a fix rewrites."""

    fix: str
    upstream: str
    file: str
    """Relative to the folder on the import path: ``megatron/core/parallel_state.py``."""
    function: str
    """Its qualified name: ``TEGroupedMLP.forward``."""
    depends_on: Target | None = None
    """Another function of the upstream: only beside a wrong shape of it is this one wrong."""
    set: str | None = None
    """The name of the targets that this one belongs to, where the fix has others in their place for other releases."""
    only_with: tuple[Target, ...] = ()
    """Other functions of the upstream: only in a copy that has one of them is this one wrong."""
    exact: bool = False
    """Whether its edits are lines of a diff: see ``codemods.exact``."""
    text: bool = False
    """Whether it is no function, but such lines alone; its name is ``line-12``, as the release was that has them."""
    anywhere: bool = False
    """Whether these lines alone say that a release needs them, be it on record or not."""
    parameters: tuple[str, ...] = ()
    """The names of the values that its edits take from the user."""
    workaround: str = ""
    """What to do where the function has the defect, and no rewrite is for it."""
    unaffected: str = ""
    """Why a copy without the feature does not have the defect."""

    @property
    def place(self) -> str:
        """As the matrix names it: ``file::function``."""
        return f"{self.file}::{self.function}"


class LeaveOut(NamedTuple):
    """A job that a fix would harm: see ``unhang.job.condition`` for how the condition is written."""

    condition: str
    effect: str
    """``aborts``, ``hangs``, ``worse-values`` or ``slower``."""
    why: str
    when: str = ""
    """The condition in words, as reports print it, since `check` must not import ``ast``; empty for the condition."""


class Companion(NamedTuple):
    """A fix without which another one harms a job."""

    fix: str
    upstream: str
    releases: str
    """The releases in which that is so, as pip writes them: ``<0.8``; empty for all."""
    why: str


class Fix(NamedTuple):
    """A fix, as users name it."""

    id: str
    title: str
    grade: str
    """``cure``, ``safeguard`` or ``unproved``: see ``GRADES``."""
    manifest: Mapping[str, Any]
    """Its manifest.json, with DEP-3 fields as keys."""
    targets: tuple[Target, ...]
    folder: str
    kinds: tuple[str, ...] = ()
    """What the defect does to a job: some of ``records.KINDS``."""
    changes_numbers: bool = False
    """Whether a job that runs today will compute other numbers; True where nobody has said."""
    pack: Pack = packs.OURS
    """Where it comes from."""

    @property
    def what(self) -> str:
        """What is wrong, as its title says it; without the upstream's name, where that begins the title."""
        name, colon, rest = self.title.partition(": ")
        upstreams = tuple({target.upstream for target in self.targets})
        return rest if colon and name.lower().startswith(upstreams) else self.title

    @property
    def when(self) -> str:
        """What a job must be set to, or do, for the defect to strike: ``only with ...``; empty if that is not known."""
        found: str = self.manifest.get("when", "")
        return found

    @property
    def strikes(self) -> str:
        """The condition on a job's settings under which the defect strikes: ``when`` is made from it."""
        found: str = self.manifest.get("strikes", "")
        return found

    @property
    def leave_out(self) -> tuple[LeaveOut, ...]:
        """The jobs that the fix is to be left out of."""
        rows = self.manifest.get("leave-out", ())
        return tuple(LeaveOut(it["if"], it["effect"], it["why"], it.get("when", "")) for it in rows)

    @property
    def companions(self) -> tuple[Companion, ...]:
        """The fixes that must come along where they are needed."""
        rows = self.manifest.get("with", ())
        return tuple(Companion(it["fix"], it["upstream"], it.get("releases", ""), it["why"]) for it in rows)

    @property
    def after(self) -> tuple[str, ...]:
        """The fixes that were in place when it was begun: it goes on top of them."""
        return tuple(self.manifest.get("after", ()))

    @property
    def left(self) -> tuple[str, ...]:
        """What the diff that it is from has besides, which a person has to do: see ``decide.incomplete``."""
        return tuple(self.manifest.get("left", ())) if self.grade == UNPROVED else ()

    @property
    def effect(self) -> str:
        """What the defect does, and whether its cure changes numbers, in words."""
        if not self.kinds:
            in_part = "it has its diff in part; " if self.left else ""
            return f"{in_part}nobody has said what it changes, numbers included"
        return ", ".join(self.kinds) + ("; changes numbers" if self.changes_numbers else "")

    @property
    def functions(self) -> tuple[Target, ...]:
        """The targets, and then the functions that these depend on or go with: what the matrix has shapes of."""
        others = [other for one in self.targets for other in (one.depends_on, *one.only_with) if other is not None]
        return tuple(dict.fromkeys((*self.targets, *others)))


class Shape(NamedTuple):
    """What the matrix says about one shape of a fix's target."""

    state: str
    """``affected``, ``no-rewrite`` (affected, too), ``fixed`` (by upstream), ``not-affected``, or ``ours`` (the result
    of our rewrite); of a function that targets depend on, ``right``, ``repaired`` or ``wrong``."""
    result: str | None
    """The shape after our rewrite of an affected one."""
    names: tuple[str, ...]
    """The global names that the rewrite uses."""
    note: str
    """What a user should know, such as a pull request that was applied as written; often empty."""
    beside: tuple[str, ...] = ()
    """The shapes of the function that the target depends on, beside which a release or a commit has this one."""


class Release(NamedTuple):
    """One release in the matrix, with the shape of each function of some fixes by ``Target.place``; None if absent."""

    version: str
    yanked: bool
    shapes: Mapping[str, str | None]


class ShapeTable(NamedTuple):
    """All shapes on record by fix, function and digest; and the shapes in whole files by fix, sha256 and function."""

    shapes: Mapping[tuple[str, str, str], Shape]
    files: Mapping[str, Mapping[str, Mapping[str, str | None]]]

    def of_files(self, fix: str) -> Mapping[str, Mapping[str, str | None]]:
        """Return the shapes of a fix's functions in whole files, by sha256."""
        return self.files.get(fix, {})


class OutlineTable(NamedTuple):
    """The outlines of a fix's shapes that a file on record has, packed: see ``unhang.compat.sweep.outlines``."""

    kinds: Mapping[str, str]
    """The kind of each statement, by its digest."""
    blocks: Mapping[str, str]
    """The statements that contain others: their own digest, and the names of the nested ones."""
    rows: Mapping[tuple[str, str], tuple[str, str]]
    """By function and shape: the outline's name, and where upstream had it last (empty if it never had it)."""


@packs.remembered
def fixes() -> Mapping[str, Fix]:
    """Return the fixes of all packs by id, in alphabetical order.

    Raises UnhangError ``bad-pack``, and ``fix-twice`` where two packs have a fix of one id.
    """
    found: dict[str, Fix] = {}
    for pack in packs.in_effect():
        for fix in _fixes(pack):
            if other := found.get(fix.id):
                raise UnhangError(
                    "fix-twice",
                    f"{other.pack} and {pack} both have a fix {fix.id}",
                    path=fix.folder,
                    hint="take one of the packs alone, or give the fix another id",
                )
            found[fix.id] = fix
    return found if len(packs.in_effect()) == 1 else dict(sorted(found.items()))


def _fixes(pack: Pack) -> Iterator[Fix]:
    """Yield the fixes of a pack. Raises UnhangError ``bad-pack`` for one of another that is not as it must be."""
    if pack.folder:
        _refuse_lost(pack)
    patches = packs.part(pack, "patches")
    for name in packs.listed(pack, patches):
        folder = os.path.join(patches, name)
        path = os.path.join(folder, "manifest.json")
        if name[0] in "._" or not os.path.isdir(folder):
            continue
        manifest = packs.document(pack, path, "manifest") if pack.folder else known(path)
        if not manifest:
            continue
        mine = targets(name, manifest)
        if pack.folder:
            _check(name, manifest, mine, path)
        yield Fix(
            name, manifest["title"], manifest["grade"], manifest, mine, folder,
            tuple(manifest.get("kinds", ())), manifest.get("changes-numbers", manifest["grade"] == UNPROVED), pack,
        )  # fmt: skip


def _refuse_lost(pack: Pack) -> None:
    """Raise UnhangError ``bad-pack`` where a pack has what is on record of a fix, and not the fix."""
    data = os.path.join(pack.folder, "compat", "data")
    for name in packs.listed(pack, data):
        folder = os.path.join(pack.folder, "patches", name.removesuffix(".json"))
        if name.endswith(".json") and name[0] not in "._" and not os.path.isdir(folder):
            raise packs.bad(os.path.join(data, name), "there is no such fix in patches")


def _check(name: str, manifest: Mapping[str, Any], targets: Sequence[Target], path: str) -> None:
    """Raise UnhangError ``bad-pack`` for a fix of a pack under another id, or of files outside of its upstreams."""
    if manifest["id"] != name:
        raise packs.bad(path, f"the fix is {manifest['id']}, and its folder {name}")
    for target in (one for mine in targets for one in (mine, *mine.only_with, *filter(None, [mine.depends_on]))):
        upstream = packs.upstreams().get(target.upstream)
        if upstream is None:
            raise packs.bad(path, f"{target.upstream} is an upstream of no pack in effect")
        parts = target.file.split("/")
        if not upstream.holds(target.file) or {"", ".", ".."} & {*parts}:
            where = upstream.module.replace(".", "/")
            raise packs.bad(path, f"{target.file} is not below {where}, {upstream.name}'s package")


def targets(fix: str, manifest: Mapping[str, Any]) -> tuple[Target, ...]:
    """Return the targets that the manifest of a fix lists."""

    def target(item: Mapping[str, Any]) -> Target:
        def other(place: Mapping[str, str]) -> Target:
            return Target(fix, item["upstream"], place["file"], place["function"])

        depends_on = other(item["depends-on"]) if "depends-on" in item else None
        only_with = tuple(map(other, item.get("only-with", ())))
        return Target(
            fix, item["upstream"], item["file"], item.get("function") or item["text"], depends_on, item.get("set"),
            only_with, manifest["grade"] == UNPROVED, "text" in item, "any-release" in item,
            tuple(manifest.get("parameters", ())), item.get("workaround", ""), item.get("not-affected", ""),
        )  # fmt: skip

    return tuple(map(target, manifest["targets"]))


def packages(fixes: Iterable[Fix]) -> set[str]:
    """Return the modules of the packages that run other code in place of a target of these fixes."""
    return {row["module"] for fix in fixes for row in fix.manifest.get("instead", ())}


def fix(name: str) -> Fix:
    """Return the fix with this id. Raises UnhangError ``unknown-fix``, with the nearest id in its hint."""
    known = fixes()
    if name not in known:
        near = closest(name, known)
        hint = f"did you mean {near}? " if near else ""
        raise UnhangError("unknown-fix", f"there is no fix {name!r}", hint=f"{hint}`unhang list` shows all of them")
    return known[name]


@packs.remembered
def manifest_schema() -> Any:
    """Return the schema of the manifests, which has all limits of a fix."""
    return read(os.path.join(packs.folder("compat"), "schemas", "manifest.json"))


def with_words(words: Sequence[str]) -> list[Fix]:
    """Return the fixes whose id, title, symptom or signature has all of these words, in any case, also inside others.

    The symptom is the manifest's and the page's, where that says who is hit, too. No words choose all fixes.
    """
    if not words:
        return list(fixes().values())
    lowered = [word.lower() for word in words]
    found = []
    for fix in fixes().values():
        symptom = "\n".join(section(fix.id, name) for name in ("Symptom", "Who is hit"))
        words_of = [fix.manifest.get(key) for key in ("symptom", "no-hang", "signature")]
        parts = fix.id, fix.title, symptom, *strings(words_of)
        text = " ".join("\n".join(parts).lower().split())
        if all(word in text for word in lowered):
            found.append(fix)
    return found


def strings(value: Any) -> Iterator[str]:
    """Yield the strings in a value of JSON: what a signature says in words, functions and errors."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        items = [value[key] for key in value if key not in _CLAUSES] if isinstance(value, dict) else value
        for item in items:
            yield from strings(item)


@packs.remembered
def shape_table() -> ShapeTable:
    """Return the shapes and the file digests on record, each read when it is asked for."""
    return ShapeTable(
        _Entries(
            cache(lambda key: _shape(facts(key[0]).get("shapes", {}).get(f"{key[1]} {key[2]}"))),
            lambda: ((fix, *key.split(" ")) for fix in fixes() for key in facts(fix).get("shapes", ())),
        ),
        _Entries(lambda fix: facts(fix).get("files", {}), fixes),
    )


def _shape(entry: Mapping[str, Any] | None) -> Shape | None:
    if entry is None:
        return None
    names, beside = (tuple(entry.get(key, ())) for key in ("names", "beside"))
    return Shape(entry["state"], entry.get("result"), names, entry.get("note", ""), beside)


@packs.remembered
def releases() -> Mapping[str, Mapping[str, Release]]:
    """Return the releases in the matrix, by upstream and version, with the functions of all fixes."""
    shapes: dict[str, dict[str, str | None]] = {}
    for fix in fixes():
        document = facts(fix)
        for name, row in document.get("releases", {}).items():
            shapes.setdefault(name, {}).update(zip(document["targets"][name.partition(" ")[0]], row))
    found: dict[str, dict[str, Release]] = {}
    listed = _listed()
    for name in dict.fromkeys((*listed, *shapes)):  # ours, and then those that only a pack has
        row = listed.get(name, ())
        upstream, version = name.split(" ")
        found.setdefault(upstream, {})[version] = Release(version, "yanked" in row, shapes.get(name, {}))
    return found


@packs.remembered
def releases_of(fix: str, upstream: str) -> Mapping[str, Release]:
    """Return an upstream's releases by version, with a fix's functions, each read when it is asked for."""
    is_ours = not pack_of(fix).folder  # of a pack's fix, only what was read for it is on record

    @cache
    def release(version: str) -> Release | None:
        listed, row = (rows.get(f"{upstream} {version}") for rows in (_listed(), facts(fix).get("releases", {})))
        if (is_ours and listed is None) or (not is_ours and row is None):
            return None
        yanked = "yanked" in (listed or ())
        return Release(version, yanked, dict(zip(facts(fix)["targets"][upstream], row)) if row else {})

    def versions() -> Iterable[str]:
        names = _listed() if is_ours else facts(fix).get("releases", ())
        return (name.partition(" ")[2] for name in names if name.startswith(f"{upstream} "))

    return _Entries(release, versions)


@packs.remembered
def versions(upstream: str) -> tuple[str, ...]:
    """Return the versions of an upstream that are on record for any fix."""
    of_packs = (fix for fix in fixes().values() if fix.pack.folder)
    names = (*_listed(), *(name for fix in of_packs for name in facts(fix.id).get("releases", ())))
    return tuple(dict.fromkeys(name.partition(" ")[2] for name in names if name.startswith(f"{upstream} ")))


def is_yanked(upstream: str, version: str) -> bool:
    """Return whether the index has withdrawn a release of an upstream of ours."""
    return "yanked" in _listed().get(f"{upstream} {version}", ())


@packs.remembered
def tags(project: str) -> Mapping[str, str]:
    """Return the commit of each tag of a project's repository that the sweep has read, by the tag's name."""
    refs = read(os.path.join(packs.folder("compat"), "swept.json"))["swept"].get(project, {})
    return {name.removeprefix("refs/tags/"): commit for name, commit in refs.items() if name.startswith("refs/tags/")}


@packs.remembered
def outlines(fix: str) -> OutlineTable:
    """Return the outlines on record of a fix. They are read only if a shape is unknown."""
    whole = facts(fix)
    rows: dict[tuple[str, str], tuple[str, str]] = {}
    for key, entry in whole.get("shapes", {}).items():
        if "outline" in entry:
            function, digest = key.split(" ")
            rows[function, digest] = entry["outline"], entry.get("last", "")
    return OutlineTable(whole.get("kinds", {}), whole.get("blocks", {}), rows)


@packs.remembered
def facts(fix: str) -> Mapping[str, Any]:
    """Return what the sweep knows of a fix; nothing if it was never swept. Raises UnhangError ``bad-pack``."""
    pack = pack_of(fix)
    path = os.path.join(packs.part(pack, "compat"), "data", f"{fix}.json")
    if not pack.folder:
        ours: Mapping[str, Any] = _swept.get(fix) or known(path)
        return ours
    if not os.path.lexists(path):
        return {}
    found: Mapping[str, Any] = packs.document(pack, path, "facts")
    if lost := lacking(found):
        raise packs.bad(path, f"a part of it is missing: {lost}, which another part names")
    return found


def learn(swept: Mapping[str, Mapping[str, Any]]) -> None:
    """Let this be on record of our fixes for the rest of this run: a sweep knows it, and has not written it yet."""
    _swept.update(swept)
    for function in (facts, outlines, releases, releases_of, shape_table):
        function.cache_clear()


def pack_of(fix: str) -> Pack:
    """Return the pack of a fix; ours if no pack has it."""
    known = fixes() if packs.others() else {}
    return known[fix].pack if fix in known else packs.OURS


@packs.remembered
def _listed() -> Mapping[str, Any]:
    """Return the releases that all fixes have in common, by upstream and version.

    Raises UnhangError ``broken-install`` if there are none.
    """
    path = os.path.join(packs.folder("compat"), "releases.json")
    if not os.path.exists(path):  # a fix may have no data yet; these always are there
        raise UnhangError("broken-install", "a file of unhang's own is missing", path=path, hint="reinstall unhang")
    found: Mapping[str, Any] = read(path)["releases"]
    return found


class _Entries(Mapping[_Key, _Value]):
    """A mapping whose values are read when they are asked for, and whose keys only if all of them are."""

    def __init__(self, get: Callable[[_Key], _Value | None], keys: Callable[[], Iterable[_Key]]) -> None:
        self._get, self._keys = get, keys

    def __getitem__(self, key: _Key) -> _Value:
        value = self._get(key)
        if value is None:
            raise KeyError(key)
        return value

    def get(self, key: _Key, default: Any = None) -> Any:
        value = self._get(key)
        return default if value is None else value

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._keys())

    def __len__(self) -> int:
        return sum(1 for _ in self._keys())


def page(name: str) -> str:
    """Return the text that ``unhang explain`` prints. Raises UnhangError ``unknown-fix``, ``bad-pack``."""
    found = fix(name)
    path = os.path.join(found.folder, "page.md")
    with packs.Blamed(found.pack, path):
        text = packs.read(path).decode("utf-8", "replace")
    return "\n".join(map(gate.line, text.split("\n"))) if found.pack.folder else text


def section(name: str, heading: str) -> str:
    """Return a section of the page of a fix, without its heading; empty if there is none. Raises as ``page`` does."""
    return page(name).partition(f"\n## {heading}\n")[2].partition("\n## ")[0].strip()


def generation() -> int:
    """Return the generation of the rewrites: it grows by one whenever the result for a known shape changes."""
    number: int = read(os.path.join(packs.folder("compat"), "generation.json"))["generation"]
    return number

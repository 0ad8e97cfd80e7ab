"""``unhang pack new ID --pack DIR``: a fix of a pack from a diff; makes the pack and upstream too, if there is none."""

from __future__ import annotations

import argparse
import csv
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial

from packaging.utils import canonicalize_name

from unhang import gate
from unhang.codemods.exact import MARK, Exact
from unhang.deliver import download, releases, wheel
from unhang.deliver.pack_wheel import PARTS, TYPES
from unhang.deliver.releases import Release
from unhang.draft import exactly, facts, origin, pack_texts, patch, skeleton
from unhang.draft.exactly import Bound
from unhang.draft.patch import Patched, Result
from unhang.errors import UnhangError
from unhang.find import metadata
from unhang.judge import recorded
from unhang.plugins import packs, parameters
from unhang.records import Request
from unhang.rewrite import one_file
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Target
from unhang.store import receipt, state
from unhang.suggest import command, line
from unhang.survey import search
from unhang.tell import console, progress

_ASIDE = {".github", "benchmarks", "doc", "docs", "examples", "test", "tests"}
"""Folders of a repository with nothing that runs where a release is installed."""

_IN_NO_PACKAGE = "it is in the package of no upstream"
_IMPORT_NAME = "if the package is not called like its project, name it: `--import-name yaml`"


def run(options: argparse.Namespace, text: str, head: str) -> int:
    """Write the fix into the pack; return 0, or 1 if a change of the diff is left to a person.

    ``text`` is the diff, ``head`` what says where it is from. Raises UnhangError as ``new_command.run``, and
    ``no-upstream``; nothing is written then.
    """
    fix, folder = options.fix_id, options.pack[-1]
    with tempfile.TemporaryDirectory(prefix="unhang-") as work, progress.shown() as step:
        stage = os.path.join(work, "pack")
        made = _staged(options, folder, stage, text)
        _use(options, stage)
        step(f"reading {options.release}")
        asked = Request(options.python, options.target, options.source, options.script, upstreams=packs.names())
        wheels = os.path.join(work, "wheels")
        os.mkdir(wheels)
        release = releases.named(options.release, wheels, asked)
        shown = f"{release.project} {release.version}"
        matters = partial(_matters, {it.rpartition("/")[0] for it in release.files()})
        below: dict[str, None] = {}
        result = patch.apply(text, lambda path: _places(release, path, below), shown, matters=matters)
        result = _left_out(result, options)
        values = parameters.of(it.partition("=")[0] for it in options.set)
        bound, left = _parted(fix, release, result, values)
        if not bound:
            why = "; ".join((*left, *result.out)) or "it changes no line"
            hint = _IMPORT_NAME if any(it.endswith(_IN_NO_PACKAGE) for it in left) else None
            why = f"the diff has nothing for a fix: {why}"
            raise UnhangError("nothing-to-rewrite", why, path=release.where, hint=hint)
        edits = {it.target: it.codemod for it in bound}
        found = facts.tried(edits, release.read)
        text_of = pack_texts.codemod(fix, bound)
        data = facts.document(list(edits)) | {"codemod": recorded.digests(text_of.encode(), fix)}
        facts.record(data, edits, found, release.version)
        of = origin.of(head)
        of = of._replace(title=of.title or f"the diff {_named(options)}", source=options.from_patch or "")
        longest = catalog.manifest_schema()["properties"]["title"]["maxLength"]
        title = gate.line(skeleton.title(release.project, of, longest))[:longest]
        notices = dict.fromkeys(filter(None, (origin.notice(it.before) for it in result.files)))
        notice = "; ".join(notices) or _licence(release)
        made |= {
            f"patches/{fix}/manifest.json": pack_texts.manifest(
                fix, title, of, notice, list(edits), values, left, [*below]
            ),
            f"patches/{fix}/page.md": pack_texts.page(fix, title, of, shown, left),
            f"codemods/{fix.replace('-', '_')}.py": text_of,
            f"compat/data/{fix}.json": pack_texts.document(data),
        }
        _write(stage, made)
        _use(options, stage)
        _checked(fix, edits, release, found)
    _refuse_existing(folder, made)
    _write(folder, made)
    for name in made:
        console.show(f"wrote {os.path.join(folder, *name.split('/'))}")
    console.show(f"from {gate.line(release.where)}")
    for it in bound:
        console.show(pack_texts.told(it))
    console.say_each(f"left out: {it}" for it in result.out)
    console.say_each(f"left to you: {it}" for it in left)
    packs.use(options.pack, options.no_packs, os.environ)  # for the commands that are suggested
    sweep = line("unhang", "pack", "sweep", *packs.words(), "--releases", f"{release.project}=={release.version}")
    console.note(
        f"note: {fix} is unproved: it is for exactly the shapes of {shown}. `{command('check', asked)}` says whether "
        f"it is needed. To read other releases, name them in the place of this one: `{sweep}`"
    )
    return 1 if left else 0


def _named(options: argparse.Namespace) -> str:
    return "on stdin" if options.from_patch == "-" else os.path.basename(options.from_patch or "of a commit")


def _licence(release: Release) -> str:
    """Return the licence that a distribution says it has, in its own words; empty if it says none in a few."""
    name = f"{release.project.replace('-', '_')}-{release.version}.dist-info/METADATA"
    data = release.read(name) if release.where.endswith(".whl") else None
    text = metadata.read(os.path.join(release.where, name)) if data is None else data.decode("utf-8", "replace")
    found = re.search(r"^License(?:-Expression)?: (\S.{0,79})$", text.partition("\n\n")[0], re.MULTILINE)
    return f"{release.project}: {gate.line(found[1])}" if found else ""


def _places(release: Release, path: str, below: dict[str, None]) -> list[tuple[str, str]]:
    """Return as ``releases.places``, without comments of ours; ``below`` gets the fixes that are in place there.

    Raises UnhangError ``patch-does-not-fit`` for a copy that somebody else may have edited.
    """
    found = releases.places(release, path)
    for file, _ in found:
        fixes = _in_place(release, file)
        if not fixes and (why := release.unconfirmed(file)):
            hint = "reinstall the package, or name another environment, or the path of a wheel"
            raise UnhangError("patch-does-not-fit", f"{gate.line(file)} {why}", path=release.where, hint=hint)
        below.update(dict.fromkeys(fixes))
    return [(file, "\n".join(row for row in text.split("\n") if not MARK.match(row))) for file, text in found]


def _in_place(release: Release, file: str) -> list[str]:
    """Return the fixes that a receipt has in a file, which is as they left it; none if it is not."""
    folder = state.folder(os.path.realpath(release.where))
    found = receipt.load(folder) if state.has_receipt(folder) else None
    digest = receipt.sha256(release.read(file) or b"")
    entries = (it for it in (found.files if found else ()) if it.patched == digest)
    return [it.fix for entry in entries if any(it.file == file for it in entry.fixes) for it in entry.fixes]


def _staged(options: argparse.Namespace, folder: str, stage: str, text: str) -> dict[str, str]:
    """Copy the pack into ``stage``; return the files that it and the upstream begin with, by path, where missing.

    ``text`` is the diff: of the packages of a distribution, those that it changes become upstreams.
    """
    made: dict[str, str] = {}
    if os.path.isfile(os.path.join(folder, "pack.json")):
        _copy(folder, stage)
    else:
        if os.path.isdir(folder) and os.listdir(folder):
            hint = "name a new or empty folder, or one that has pack.json"
            raise UnhangError("no-pack", "there is no pack in this folder, and it is not empty", path=folder, hint=hint)
        name = re.sub("[^a-z0-9]+", "-", os.path.basename(os.path.realpath(folder)).lower()).strip("-")
        made["pack.json"] = pack_texts.pack(name if name[:1].isalpha() else f"pack-{name}".strip("-"))
    _write(stage, made)
    _use(options, stage)
    name = _distribution(options.release)
    if releases.project(name) not in packs.upstreams():
        plain = canonicalize_name(name)
        tops = _tops(_members(options, name, f"{stage}-wheels"))
        named = {it: tops.get(it, False) for it in filter(None, [options.import_name])}
        if tops and not named.keys() <= tops.keys():
            hint = f"it has {', '.join(tops)}; leave out --import-name"
            raise UnhangError("bad-option", f"{gate.line(options.release)} has no {options.import_name}", hint=hint)
        touched = {it: is_file for it, is_file in tops.items() if re.search(rf"[/\s\"]{_path(it, is_file)}", text)}
        others = sorted(touched or tops, key=lambda it: it.lower() != plain.replace("-", "_"))
        found = named | {it: tops[it] for it in others} or {plain.replace("-", "_"): False}
        for module, is_file in found.items():
            key = plain if module == next(iter(found)) else canonicalize_name(f"{plain}-{module}").lstrip("-")
            within = plain if key != plain else None
            made[f"upstreams/{key}.json"] = pack_texts.upstream(name, module, is_file, within)
        _write(stage, {path: it for path, it in made.items() if path.startswith("upstreams/")})
    return made


def _path(module: str, is_file: bool) -> str:
    return re.escape(module.replace(".", "/") + (".py" if is_file else "/"))


def _tops(files: Sequence[str]) -> dict[str, bool]:
    """Return the modules of a distribution that are in no other, each with whether it is of one file."""
    inside = {file.rpartition("/")[0] for file in files if file.endswith("/__init__.py")}
    tops = {it for it in inside if not any(it.startswith(f"{other}/") for other in inside)}
    names = {it.replace("/", "."): False for it in tops} | {
        it[:-3]: True for it in files if re.fullmatch(r"\w+\.py", it)
    }
    return {name: is_file for name, is_file in sorted(names.items()) if all(map(str.isidentifier, name.split(".")))}


def _members(options: argparse.Namespace, name: str, folder: str) -> Sequence[str]:
    """Return the files of the release of an upstream that no pack has: by the RECORD in an environment, or in a wheel.

    One that is downloaded into ``folder`` is the release from then on.
    """
    asked = Request(options.python, options.target, options.source, options.script, allow_none=True)
    paths = () if options.release.endswith(".whl") else search.find(asked).path
    wanted = f"{canonicalize_name(name)}-{options.release.partition('==')[2].strip()}"
    for path in paths:
        for info in (it for it in metadata.names(path) if it.endswith(".dist-info")):
            project, _, version = info.removesuffix(".dist-info").rpartition("-")
            if f"{canonicalize_name(project)}-{version}" == wanted:
                rows = csv.reader(metadata.read(os.path.join(path, info, "RECORD")).splitlines())
                return [row[0] for row in rows if row]
    if not options.release.endswith(".whl"):
        if "==" not in options.release or options.source:
            return ()
        os.makedirs(folder)
        (options.release,) = download.fetch([options.release], download.Options(None, ()), folder).paths
    return list(wheel.load(options.release).installed())


def _copy(folder: str, stage: str) -> None:
    """Copy what a pack is made of. Raises UnhangError as ``packs.load``, and ``bad-pack``."""
    pack = packs.load(os.path.realpath(folder))
    parts = ((above, names) for part in PARTS for above, _, names in os.walk(os.path.join(pack.folder, part)))
    for above, names in ((pack.folder, ["pack.json"]), *parts):
        for name in (it for it in names if it.endswith(TYPES)):
            path = os.path.join(above, name)
            with packs.Blamed(pack, path):
                data = packs.read(path)
            copy = os.path.join(stage, os.path.relpath(path, pack.folder))
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            with open(copy, "wb") as file:
                file.write(data)


def _distribution(requirement: str) -> str:
    if requirement.endswith(".whl"):
        return os.path.basename(requirement).partition("-")[0].replace("_", "-")
    return requirement.partition("==")[0].strip()


def _use(options: argparse.Namespace, stage: str) -> None:
    """Let the staged pack, as it is now, be in effect in the place of the one that it becomes."""
    packs.use([], True, {})
    packs.use([*options.pack[:-1], stage], options.no_packs, os.environ)


def _left_out(result: Result, options: argparse.Namespace) -> Result:
    """Return what a diff does without the paths that a person leaves out, or is refused under ``--strict``."""
    paths = [*(it.partition(": ")[0] for it in (*result.left, *result.out)), *(it.diffed for it in result.files)]
    for path in (it for it in options.leave_out if not any(_is_at(each, it) for each in paths)):
        raise UnhangError("bad-option", f"the diff has no {gate.line(path)}", hint="write the path as the diff has it")
    named = [it for it in result.left if any(_is_at(it.partition(": ")[0], path) for path in options.leave_out)]
    left = tuple(it for it in result.left if it not in named)
    files = tuple(it for it in result.files if not any(_is_at(it.diffed, path) for path in options.leave_out))
    out = (*result.out, *named, *(f"{it.diffed}: as you said" for it in result.files if it not in files))
    if options.strict and out:
        hint = "leave out --strict, or begin the fix from a diff without these"
        raise UnhangError("patch-does-not-fit", f"the diff has more than the fix: {'; '.join(out)}", hint=hint)
    return Result(files, left, out)


def _is_at(file: str, path: str) -> bool:
    return file.partition(", hunk ")[0] == path or file.startswith(f"{path.rstrip('/')}/")


def _matters(folders: set[str], path: str, is_new: bool) -> bool:
    """Return whether a path that a release lacks is of its code: a module or a new file in its folders, and no test."""
    above, _, name = path.rpartition("/")
    parts = above.split("/")
    aside = not _ASIDE.isdisjoint(parts) or name.startswith("test_") or not (is_new or name.endswith(".py"))
    return not aside and any("/".join(parts[at:]) in folders for at in range(len(parts)) if above)


def _parted(fix: str, release: Release, result: Result, values: Mapping[str, str]) -> tuple[list[Bound], list[str]]:
    """Return the edits of all files, and what is left.

    Raises UnhangError ``bad-option`` for a value that is no text, and as ``_refuse_broken``.
    """
    bound: list[Bound] = []
    left = list(result.left)
    path = catalog.manifest_schema()["properties"]["targets"]["items"]["properties"]["file"]
    for patched in result.files:
        upstream = releases.of_file(release.project, patched.file)
        if not packs.upstreams()[upstream].holds(patched.file):
            left.append(f"{patched.file}: {_IN_NO_PACKAGE}")
        elif not re.search(path["pattern"], patched.file):
            left.append(f"{gate.line(patched.file)}: its name is not that of a file of a package")
        else:
            _refuse_broken(patched)
            same = [it.file for it in result.files if it.before == patched.before]
            bound += exactly.part(fix, upstream, patched, values, bound, same)
    texts = [(it, row) for it in bound for swap in it.swaps for row in swap.new]
    for name, value in values.items():
        if not any(f"${{{name}}}" in row for _, row in texts):
            hint = "give the value as the diff has it"
            raise UnhangError("bad-option", f"no text that the diff adds has {value!r}, for {name}", hint=hint)
    for patched in result.files if values else ():
        mine = [it for it in bound if it.target.file == patched.file]
        _refuse_code(patched, mine, values)
    return bound, left


def _refuse_broken(patched: Patched) -> None:
    """Raise UnhangError for a module that does not parse after the diff: ``newer-syntax`` if not before, either."""
    if not patched.file.endswith(".py") or not (why := _unreadable(patched, patched.after)):
        return
    if _unreadable(patched, patched.before):
        hint = "run unhang with a newer Python; or, if that is no module, leave it out: `--leave-out PATH`"
        why = f"neither this Python nor LibCST can read the release's file: {why}"
        raise UnhangError("newer-syntax", why, hint=hint)
    raise UnhangError("bad-patch", f"a file does not parse after the diff: {why}", hint="see whether the diff is whole")


def _unreadable(patched: Patched, text: str) -> str:
    """Return why a module does not parse, with its line; empty if it does, or has newer syntax that LibCST reads."""
    try:
        shape.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        return "" if one_file.is_newer(text.encode(patched.encoding)) else gate.line(f"{patched.file}{line}: {error}")
    return ""


def _refuse_code(patched: Patched, bound: Sequence[Bound], values: Mapping[str, str]) -> None:
    """Raise UnhangError ``bad-option`` where a value is no text of a module."""
    names = [name for name in values if any(f"${{{name}}}" in row for it in bound for s in it.swaps for row in s.new)]
    if not names:
        return
    hint = "give a value that the diff has inside of strings alone"
    taken = [name for name in names if f"${{{name}}}" in patched.before]
    if taken or not patched.file.endswith(".py"):
        why = f"has ${{{taken[0]}}} itself" if taken else "is no module of Python"
        raise UnhangError("bad-option", f"{patched.file} {why}, so no parameter can be in it", hint=hint)
    try:
        text = patched.before
        for it in bound:
            text = it.codemod.edited(text, it.target, "")
    except parameters.Refused as error:
        raise UnhangError("bad-option", str(error), hint=hint) from error


def _checked(fix: str, edits: Mapping[Target, Exact], release: Release, found: facts.Tried) -> None:
    """Raise UnhangError ``bad-patch`` unless the fix, as it was written, does what was tried."""
    names = [name for it in edits for name in it.parameters]
    with parameters.stood_in(names):  # whatever their values are, they must not be in the shapes
        written = {target: recorded.edits(target) for target in catalog.fix(fix).targets}
        again = facts.tried(written, release.read)
    if found.misfits or [*written] != [*edits] or again != found:
        why = ", ".join(f"{it.function}: {why}" for it, why in found.misfits.items())
        places = sorted({it.function for it in edits})
        why = why or f"read again from their file, those of {', '.join(places)} do something else"
        raise UnhangError("bad-patch", f"the edits of the diff do not work together: {why}")


def _refuse_existing(folder: str, names: Mapping[str, str]) -> None:
    there = [path for name in names if os.path.lexists(path := os.path.join(folder, *name.split("/")))]
    if there:
        raise UnhangError("fix-exists", "this file is there already", path=there[0], hint="move it away")


def _write(folder: str, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = os.path.join(folder, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            file.write(text)

"""What came of NeMo-RL's patches, as Markdown. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from support.pages import table
from tried.originals import AT_RUN_TIME
from tried.steps import APPLIED, DRIFTED, REVERTED, Seen, Tried

_WAYS = ("theirs", "ours")


def tried(found: Sequence[Tried], commit: str) -> str:
    """Return two tables: what became of each patch, and what each way does in the three cases."""
    whole = sum(bool(one.targets) and not one.left for one in found)
    part = sum(bool(one.targets and one.left) for one in found)
    rows = [(_name(one), _release(one), str(one.lines), _became(one)) for one in found]
    rows += [(f"`{name}`", upstreams, "", "no: it replaces functions in memory, and changes no file")
             for name, upstreams in AT_RUN_TIME.items()]  # fmt: skip
    cases = [
        (_name(one), case, _told(one.ours.get(case)), _told(one.theirs.get(case)))
        for one in found
        for case in (APPLIED, DRIFTED, REVERTED)
        if case in one.ours or case in one.theirs
    ]
    theirs, ours = ([way[DRIFTED] for one in found if DRIFTED in (way := getattr(one, name))] for name in _WAYS)
    quiet = [seen for seen in theirs if seen.code == 0]
    return "\n\n".join(
        (
            f"NeMo-RL at {commit}: of {len(found)} tries, **{whole} became a fix as a whole**, {part} in part.",
            table(("patch", "release", "lines", "became a fix"), rows),
            table(("patch", "case", "unhang apply, or revert", "the original"), cases),
            f"Where the place had changed, {len(quiet)} of {len(theirs)} originals ended with 0, and "
            f"{sum(seen.files != 'untouched' for seen in quiet)} of these wrote anyway. `unhang apply --require "
            f"ID` ended with 1, and wrote nothing, in {sum(seen[:2] == (1, 'untouched') for seen in ours)} of "
            f"{len(ours)} tries.",
        )
    )


def _name(one: Tried) -> str:
    return f"`{one.original.name}`"


def _release(one: Tried) -> str:
    return f"{one.original.upstream.project} {one.original.upstream.version}"


def _became(one: Tried) -> str:
    if not one.lines:
        return "there is nothing: on this release the patch changes no file"
    left = "; ".join(why(line) for line in one.left)
    if one.targets:
        names = ", ".join(f"`{target.partition(' ')[2]}`" for target in one.targets)
        return f"in part: {names}; left: {left}" if left else f"yes: {names}"
    rows = one.new.text.strip().splitlines()
    return f"no: {left or why(next((row for row in rows if row.startswith('error[')), rows[-1]))}"


def why(line: str) -> str:
    """Return why a hunk is left, without what is upstream's: its place, and the code that it shows."""
    reason = re.sub(r"^.*?@@ [^@]+ @@: ", "", line)
    reason = re.sub(r"^(it changes code that binds no name): .*$", r"\1", reason)
    return gone_folders(reason)


def gone_folders(text: str) -> str:
    """Return a text without the folders of one run."""
    return re.sub(r"/\S*/unhang-tried-\w+/", "", text)


def _told(seen: Seen | None) -> str:
    return f"exit {seen.code}, {seen.files}" if seen else "not tried: there is no fix"

"""The end states of upstream's functions, run as the session does."""

import contextlib
import io
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from support import sources
from support.sources import Source as Upstream
from unhang.compat.endstates import sandbox, scenes
from unhang.compat.endstates.compare import Row, compare, tried
from unhang.compat.endstates.endstate import EndState, Outcome, Source
from unhang.shapes import catalog
from unhang.shapes.shape import Function

ROWS: dict[tuple[str, str, str], dict[str, Any]] = {
    (row["fix"], row["function"], row["shape"]): row["endstate"] for row in sources._ROWS if "endstate" in row
}


class Some(EndState):
    """Some configurations of an end state. What the untouched function does in each is ``known`` once it has run."""

    def __init__(
        self, whole: EndState, configurations: Sequence[Any], before: Source, known: dict[Any, Outcome]
    ) -> None:
        self.whole, self.some, self.before, self.known = whole, configurations, before, known
        self.varied, self.held = whole.varied, whole.held  # type: ignore[misc]
        self.has_feature, self.concerned = whole.has_feature, whole.concerned  # type: ignore[method-assign]
        self.same, self.control, self.part = whole.same, whole.control, whole.part  # type: ignore[method-assign]

    def configurations(self, function: Function) -> Iterator[Any]:
        return iter(self.some)

    def observe(self, source: Source, configuration: Any) -> Outcome:
        if source is not self.before:
            return self.whole.observe(source, configuration)
        if configuration not in self.known:
            self.known[configuration] = tried(self.whole, source, configuration)
        return self.known[configuration]


def of(upstream: Upstream) -> EndState:
    """Return the end state of an upstream function, which has one."""
    found = sandbox.end_state(upstream.target.fix, upstream.target.function)
    assert found is not None
    return found


def sample(before: Upstream, after: Upstream | None, most: int = 12) -> Row:
    """Run a function and its rewrite in so many of the configurations that the fix is about, and of the others.

    Four of the former, if there are as many, are some that the rewrite must cure.
    """
    endstate, source, known = of(before), Source(before.data.decode(), before.target.function), dict[Any, Outcome]()
    every = [*endstate.configurations(before.function)]
    random.Random(most).shuffle(every)
    parts = [[it for it in every if endstate.concerned(it) is concerned] for concerned in (True, False)]
    first = Some(endstate, (), source, known)

    def fails(configuration: Any) -> bool:
        return bool(first.observe(source, configuration).faults)

    cured = (it for it in parts[0] if (control := endstate.control(it)) and fails(it) and not fails(control))
    chosen = {*itertools.islice(cured, 4), *parts[0][:most], *parts[1][:most]}
    rewritten = after and Source(after.data.decode(), after.target.function)
    with contextlib.redirect_stdout(io.StringIO()):
        return compare(Some(endstate, [*chosen], source, known), source, rewritten, _is_pull(before))


def row(upstream: Upstream, after: Source | None = None, text: str | None = None) -> Row:
    """Run an upstream function, or a changed ``text`` of its file, and our rewrite of it, or another one.

    A scene plays the text in the tree of the upstream function that was changed.
    """
    name = upstream.target.function
    if after is None and text is None and upstream.known.state == "affected":
        after = Source(upstream.rewritten.data.decode(), name)
    fix, untouched = upstream.target.fix, Source(upstream.data.decode(), name)
    before = Source(text, name) if text else untouched
    if scenes.of(fix, name):
        texts = {scenes.BEFORE: before, **({scenes.AFTER: after} if after else {})}
        return scenes.row(fix, before, after, scenes.played(fix, untouched, texts, [*texts]))
    return sandbox.run(fix, before, after, text is None and _is_pull(upstream))


def _is_pull(upstream: Upstream) -> bool:
    listed = catalog.shape_table().shapes.get((upstream.target.fix, upstream.target.function, upstream.digest))
    return listed is not None and listed.note.startswith("pull request")


def row_of(upstream: Upstream) -> Row:
    return Row(**ROWS[upstream.target.fix, upstream.target.function, upstream.digest], problems=[])

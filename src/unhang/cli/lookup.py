"""Which pages answer a reporter's own words: of fixes, causes, words and error codes, the best first."""

from __future__ import annotations

import re
from collections import Counter
from math import log
from typing import TYPE_CHECKING, NamedTuple

from unhang.cli.error_codes import causes, codes, words
from unhang.diagnose.phrases import PHRASES
from unhang.errors import misspelt
from unhang.shapes import catalog

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKEN = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_PHRASE = re.compile(r"\w[ _]\w")
"""What more than one word begins a line with."""
_RANK = re.compile(r"\brank\d+")
_GROUP = re.compile(r"\(\?P<\w+>|\\\w")
_PART = re.compile(r"[a-z][a-z0-9]*")
_COMMON = frozenset(
    "a an and are as at be but by can do does for from has have how i if in into is it its me my no not of on or our "
    "so whether some that the their them then there they this to too was we what when where which while why will with "
    "you your error errors job issue problem help please training train model using use run running get got".split()
)
"""Words that stand in each report, and tell nothing."""
_ALIKE = {
    **dict.fromkeys(("stuck", "freeze", "frozen", "hung", "deadlock", "stall"), "hang"),
    **dict.fromkeys(("oom", "ram"), "memory"),
    **dict.fromkeys(("flat", "constant"), "move"),
    **dict.fromkeys(("low", "lower", "smaller"), "small"),
    **dict.fromkeys(("unbalanced", "unbalance", "imbalance", "imbalanc"), "balance"),
    **dict.fromkeys(("crash", "die", "dead"), "died"),
    **{"grad": "gradient", "dataloader": "loader", "param": "parameter"},
}
"""What people call it, by the word of the pages."""
_SUFFIXES = ("ing", "ed", "es", "s")
_NO_HANG = 0.8  # of a defect that hangs nothing, for somebody who asks about a hang
_LONG, _STEM = 5, 4
_ENOUGH, _AHEAD, _MOST = 0.25, 1.25, 5
"""The share of a query that a page must have; how far ahead the first is shown alone; how many are listed."""
_UNKNOWN, _WHOLE = 0.3, 0.25
"""What a word counts that no page has; and what it counts that a fix has all words."""


class Found(NamedTuple):
    """A page, and how well it answers."""

    kind: str
    """``fix``, ``cause``, ``error`` or ``word``."""
    name: str
    title: str
    score: float


class _Page(NamedTuple):
    kind: str
    name: str
    title: str
    tokens: Mapping[str, float]
    """With the weight of the best place at which each stands."""


def tokens(text: str) -> list[str]:
    """Return the words of a text that may tell something, in their basic form, whole names first; no numbers."""
    found: dict[str, None] = {}
    plain = _RANK.sub("rank ", re.sub(r"([a-z])([A-Z])", r"\1_\2", text).lower().replace("-", " "))
    for name in _TOKEN.findall(plain):
        for word in (name, *_PART.findall(name.replace("_", " "))):
            if word not in _COMMON and len(word) > 1:
                found[_stem(word)] = None
    return [*found]


def _stem(word: str) -> str:
    ending = next((one for one in _SUFFIXES if word.endswith(one) and len(word) - len(one) >= _STEM), "")
    stem = word[: len(word) - len(ending)] if "_" not in word else word
    return _ALIKE.get(stem, _ALIKE.get(word, stem))


def find(query: str) -> list[Found]:
    """Return the pages that answer, the best first; only one if it is far ahead, and none if nothing answers."""
    pages = _pages()
    number = Counter(token for page in pages for token in page.tokens)
    rarity = {token: log(1 + len(pages) / count) for token, count in number.items()}
    asked = {token: near for token in tokens(query) if (near := _near(token, rarity))}
    unknown = len(tokens(query)) - len(asked)
    weight = {near: rarity[near] for near in asked.values()}
    whole = sum(weight.values()) + _UNKNOWN * unknown * log(1 + len(pages))
    begins = {one.word.strip(" :[(.").lower(): one.cause for one in PHRASES if _PHRASE.search(one.word.strip())}
    said = {cause for word, cause in begins.items() if word in query.lower()}
    ranked = []
    for page in pages:
        score = sum(part * page.tokens.get(token, 0) for token, part in weight.items())
        score += whole if page.kind == "cause" and page.name in said else 0
        score += whole * _WHOLE if page.kind == "fix" and not unknown and weight.keys() <= page.tokens.keys() else 0
        if page.kind == "fix" and "hang" in asked and "hang" not in catalog.fix(page.name).manifest["kinds"]:
            score *= _NO_HANG
        if whole and score / whole >= _ENOUGH:
            ranked.append(Found(page.kind, page.name, page.title, score))
    ranked.sort(key=lambda one: -one.score)
    if len(ranked) > 1 and ranked[0].score >= _AHEAD * ranked[1].score:
        return ranked[:1]
    return ranked[:_MOST]


def _near(token: str, known: Mapping[str, float]) -> str:
    """Return the known word that is meant, also if it is misspelt; empty if there is none."""
    if token in known:
        return token
    return misspelt(token, known) if len(token) >= _LONG else ""


def _pages() -> list[_Page]:
    pages = []
    for fix in catalog.fixes().values():
        symptom, hit, cause = (catalog.section(fix.id, name) for name in ("Symptom", "Who is hit", "Cause"))
        told = [fix.manifest.get(key) or "" for key in ("symptom", "no-hang", "when", "cause")]
        signature = catalog.strings(fix.manifest.get("signature"))
        strong = " ".join((fix.id, fix.title, *map(str, told), symptom, hit))
        pages.append(_page("fix", fix.id, fix.title, strong, " ".join((cause, *signature))))
    for name, page in causes().items():
        mine = [one for one in PHRASES if one.cause == name]
        said = " ".join(f"{one.word} {one.words} {_GROUP.sub(' ', one.pattern.pattern)}" for one in mine)
        pages.append(_page("cause", name, " ".join(page.partition(".")[0].split()), f"{name} {page}", said))
    for name, error in codes().items():
        pages.append(_page("error", name, error.cause.partition(".")[0], name, f"{error.cause} {error.cure}"))
    pages += [_page("word", name, text.partition(".")[0], name, text) for name, text in words().items()]
    return pages


def _page(kind: str, name: str, title: str, strong: str, weak: str) -> _Page:
    weights = dict.fromkeys(tokens(weak), 0.5)
    weights |= dict.fromkeys(tokens(strong), 1.0)
    weights |= dict.fromkeys(tokens(f"{name} {title}" if kind == "fix" else name), 1.3)
    if kind in ("error", "word"):  # of our own output: only their names are what people have
        weights = {token: weight * (0.6 if weight <= 1 else 0.8) for token, weight in weights.items()}
    return _Page(kind, name, title, weights)

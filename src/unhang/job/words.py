"""The words of a shell script, with its variables put in as far as the script itself tells them. Nothing is run."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

LONGEST = 200_000
"""Characters of a word, and of all words that one word becomes."""
MOST = 20_000
"""Words of a command."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_MATH = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_DEEPEST = 40


class NoShellError(ValueError):
    """A text that is no shell script; the message says why."""


class Word(NamedTuple):
    """A word of a command, as the shell would pass it on."""

    raw: str
    """Its text; what is not known of it has a mark in its place, and what is a variable's default has one beside it."""
    line: int
    maybe: str = ""
    """Why it may be left out; else empty."""

    @property
    def text(self) -> str:
        """Its text, without marks."""
        return _MARK.sub("", self.raw) if "\0" in self.raw else self.raw

    @property
    def unknown(self) -> str:
        """Why its text is not known; else empty."""
        return self._marked("ua")

    @property
    def open(self) -> bool:
        """Whether it may be any number of words."""
        return bool(self._marked("a"))

    @property
    def unless(self) -> str:
        """The variable of whose default it is made, which may be set when the script starts; else empty."""
        return self._marked("d")

    def _marked(self, kinds: str) -> str:
        if "\0" not in self.raw:
            return ""
        found = next((it[2] for it in _MARK.finditer(self.raw) if it[1] in kinds), "")
        return bytes.fromhex(found).decode("utf-8", "surrogatepass")


class Array(tuple[Word, ...]):
    """The words of an array, as its variable has them."""


_MARK = re.compile("\0([uad])([0-9a-f]*)\0")
"""A text in it is in hexadecimal digits, which no shell splits."""


def marked(kind: str, text: str) -> str:
    """Return a mark: ``u`` why a text is not known, ``a`` the same of several words, ``d`` whose default it is."""
    return f"\0{kind}{text.encode('utf-8', 'surrogatepass').hex()}\0"


def unknown(why: str, line: int) -> Word:
    """Return a word that is not known, and why."""
    return Word(marked("u", why), line)


def several(why: str, line: int) -> Word:
    """Return a word that stands for any number of words that are not known, and why."""
    return Word(marked("a", why), line)


def by_default(word: Word, name: str) -> Word:
    """Return a word that depends on a variable not being set."""
    return word if not name or word.unless else word._replace(raw=word.raw + marked("d", name))


Variables = MutableMapping[str, "tuple[Word, ...]"]
"""The words of each variable: one, or those of an array."""


def end_of_word(text: str, start: int) -> int:
    """Return where the word that begins at an index ends. Raises NoShellError."""
    at = start
    while at < len(text):
        one = text[at]
        if one in "<>" and text[at + 1 : at + 2] == "(":
            at = end_of_bracket(text, at + 1)
        elif one.isspace() or one in ";&|()<>":
            break
        else:
            at = _after(text, at)
    return at


def _after(text: str, at: int, depth: int = 0) -> int:
    """Return the index after one character, escape, quoted text or expansion. Raises NoShellError."""
    if depth > _DEEPEST:
        raise NoShellError("it is nested too deeply")
    one = text[at]
    if one == "\\":
        return min(at + 2, len(text))
    if one in "'`":
        return _found(text, one, at + 1)
    if one == '"':
        at += 1
        while at < len(text) and text[at] != '"':
            at = at + 1 if text[at] == "'" else _after(text, at, depth + 1)
        return _found(text, '"', at)
    if one == "$" and text[at + 1 : at + 2] in ("(", "{"):
        return end_of_bracket(text, at + 1, depth + 1)
    return at + 1


def end_of_bracket(text: str, at: int, depth: int = 0) -> int:
    """Return the index after the bracket that closes the one at an index. Raises NoShellError."""
    opening, closing = text[at], {"(": ")", "{": "}"}[text[at]]
    level, at = 1, at + 1
    while at < len(text):
        if text[at] == closing:
            level -= 1
            if not level:
                return at + 1
        level += text[at] == opening
        at = _after(text, at, depth + 1)
    raise NoShellError(f"a {opening} is not closed")


def _found(text: str, mark: str, start: int) -> int:
    at = text.find(mark, start)
    if at < 0:
        raise NoShellError(f"a {mark} is not closed")
    return at + 1


class _Made:
    """Words in the making."""

    def __init__(self, line: int) -> None:
        self.words: list[Word] = []
        self._line, self._size = line, 0
        self._new()

    def _new(self) -> None:
        self._text: list[str] = []
        self._maybe, self._at = "", self._line
        self._is_there = False

    def add(self, text: str, word: Word | None = None) -> None:
        """Add a text that stays in the word."""
        self._size += len(text)
        if self._size > LONGEST or len(self.words) > MOST:
            raise NoShellError("a word of it is too long")
        self._text.append(text)
        self._is_there = True
        if word is not None:
            self._at = self._at if any(self._text[:-1]) else word.line
            self._maybe = self._maybe or word.maybe

    def split(self, word: Word) -> None:
        """Add a text that is split at spaces."""
        parts = [part for part in word.raw.split() if word._replace(raw=part).text or word._replace(raw=part).unknown]
        if word.raw[:1].isspace():
            self.end()
        for number, part in enumerate(parts):
            if number:
                self.end()
            self.add(part, word)
        if parts and word.raw[-1:].isspace():
            self.end()

    def end(self) -> None:
        """End the word, if there is one."""
        if self._is_there:
            self.words.append(Word("".join(self._text), self._at, self._maybe))
        self._new()


def expanded(raw: str, line: int, variables: Variables, depth: int = 0) -> list[Word]:
    """Return the words that a raw word of a script becomes. Raises NoShellError."""
    if depth > _DEEPEST:
        raise NoShellError("it is nested too deeply")
    made, at = _Made(line), 0
    alone = re.fullmatch(r'"?\$(\w+|[@*]|\{[^{}]*\})"?', raw)
    quoted = is_none = False
    while at < len(raw):
        one = raw[at]
        end = at + 1 if one == '"' or (quoted and one == "'") else _after(raw, at)
        if one == '"':
            quoted = not quoted
            made.add("")
        elif one == "'" and not quoted:
            made.add(raw[at + 1 : end - 1])
        elif one == "\\":
            after = raw[at + 1 : end]
            made.add("" if after == "\n" else after if not quoted or after in '$`"\\' else one + after)
        elif one == "`":
            made.add(marked("u", f"{_short(raw[at:end])} is not run"))
        elif one == "$" and (inner := _expansion(raw, at, end, line, variables, depth)):
            words, end, several = inner
            is_none = several and not words
            for number, word in enumerate(words):
                if number and several:
                    made.end()
                if quoted or word.maybe:
                    made.add(word.raw, word)
                else:
                    made.split(word)
        else:
            made.add(raw[at:end])
        at = end
    made.end()
    if is_none and not any(it.raw for it in made.words):  # "$@" with no words is none
        return []
    if alone and len(made.words) == 1 and ("[@]" in raw or not raw.startswith('"')):
        whole = made.words[0]
        if (found := _MARK.fullmatch(whole.raw)) and found[1] == "u":
            return [whole._replace(raw=f"\0a{found[2]}\0")]
    return made.words


def _expansion(
    raw: str, at: int, end: int, line: int, variables: Variables, depth: int
) -> tuple[Sequence[Word], int, bool] | None:
    """Return what stands for an expansion, the index after it, and whether it is words of their own; None if none."""
    if raw.startswith("$((", at) and raw[end - 2 : end] == "))":
        return [_sum(raw[at + 3 : end - 2], line, variables, depth)], end, False
    if raw.startswith("$(", at):
        return [unknown(f"{_short(raw[at:end])} is not run", line)], end, False
    if raw.startswith("${", at):
        return _braced(raw[at + 2 : end - 1], end, line, variables, depth)
    if raw[at + 1 : at + 2] in ("@", "*"):
        return variables.get("@", ()), at + 2, True
    if found := _NAME.match(raw, at + 1):
        return _variable(found[0], line, variables), found.end(), False
    if raw[at + 1 : at + 2] and raw[at + 1] in "0123456789#?$!-":
        return [unknown(f"${raw[at + 1]} is known when the script runs", line)], at + 2, False
    return None


def _variable(name: str, line: int, variables: Variables) -> Sequence[Word]:
    return variables.get(name, [unknown(f"{name} is not set here", line)])[:1] or [Word("", line)]


def _braced(inner: str, end: int, line: int, variables: Variables, depth: int) -> tuple[Sequence[Word], int, bool]:
    """Return what stands for ``${...}``."""
    found = re.match(r"(#?)([A-Za-z_]\w*|[0-9@*]+)(?:\[([^\]]*)\])?", inner)
    other_ = [unknown(f"${{{_short(inner)}}} is not worked out", line)]
    if not found:
        return other_, end, False
    length, name, index = found.groups()
    rest = inner[found.end() :]
    if name in ("@", "*") and not length:
        return variables.get("@", ()), end, True
    if name[0].isdigit() and not rest:
        return [unknown(f"${name} is known when the script runs", line)], end, False
    if length:
        known = variables.get(name, ())
        is_known = index in ("@", "*") and name in variables and not any(it.unknown or it.maybe for it in known)
        return [Word(str(len(known)), line)] if is_known else other_, end, False
    value: Sequence[Word] = variables.get(name, ())
    if index not in (None, "@", "*"):
        value = value[int(index) : int(index) + 1] if index.isdigit() else other_
    elif index is None:
        value = value[:1]
    several = index == "@"
    form = re.match(r":?([-=+?])", rest)
    if not rest:
        if name not in variables or index is None:
            return _variable(name, line, variables), end, several
        return ([_joined(value, line)] if index == "*" else value) or [Word("", line)] * (not several), end, several
    if not form:
        return other_, end, False
    other = rest[form.end() :]
    is_empty = not value or not (value[0].text or value[0].unknown)
    if form[1] == "+":
        if name in variables and is_empty:
            return [], end, False
        words = expanded(other, line, variables, depth + 1)
        if name not in variables or value[0].unknown:
            words = [it._replace(maybe=it.maybe or f"only if {name} is set") for it in words]
        return words, end, True
    if name in variables and not is_empty:
        return value, end, several
    if form[1] == "?":
        return _variable(name, line, variables), end, several
    words = expanded(other if '"' in other or "'" in other else f'"{other}"', line, variables, depth + 1)
    outer = name if name not in variables else value[0].unless if value else ""
    words = [by_default(it, outer) for it in words or [Word("", line)]]
    if form[1] == "=":
        variables[name] = (_joined(words, line),)
    return words, end, several


def _joined(words: Sequence[Word], line: int) -> Word:
    return Word(
        " ".join(marked("u", it.maybe) if it.maybe else it.raw for it in words), words[0].line if words else line
    )


def _sum(text: str, line: int, variables: Variables, depth: int) -> Word:
    """Return what ``$((...))`` comes to."""
    named = re.sub(r"(?<![\w$])([A-Za-z_]\w*)", r"$\1", text.replace("\n", " "))
    words = expanded(f'"{named}"', line, variables, depth + 1)
    word = _joined(words, line)
    if word.unknown:
        return word
    try:
        number = _number(ast.parse(word.text.strip().replace("//", "/"), mode="eval").body)
    except (ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        return unknown(f"$(({_short(text)})) is not worked out", line)
    return by_default(word._replace(raw=str(number)), word.unless)


def _number(tree: ast.expr) -> int:
    if isinstance(tree, ast.Constant) and type(tree.value) is int and abs(tree.value) < 1 << 63:
        return tree.value
    if isinstance(tree, ast.BinOp) and type(tree.op) in _MATH:
        found: int = _MATH[type(tree.op)](_number(tree.left), _number(tree.right))
        if abs(found) < 1 << 63:
            return found
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -_number(tree.operand)
    raise ValueError


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) < 50 else f"{text[:40]}..."


def merged(before: Mapping[str, tuple[Word, ...]], ends: Sequence[Mapping[str, tuple[Word, ...]]]) -> Variables:
    """Return the variables after one of several ways through a script, which began with the same ones."""
    found: Variables = {}
    for name in dict.fromkeys(name for end in ends for name in end):
        values = [end.get(name) for end in ends]
        if all(value == values[0] for value in values) and values[0] is not None:
            found[name] = values[0]
            continue
        why = f"{name} depends on a condition"
        if any(isinstance(value, Array) or not value for value in values if value is not None):
            found[name] = _either([_units(value or ()) for value in values], why)
        else:
            found[name] = (unknown(why, max(value[0].line for value in values if value)),)
    return found


def _units(words: Sequence[Word]) -> list[tuple[Word, ...]]:
    """Return words in groups: an option with what follows it, or one word."""
    found: list[tuple[Word, ...]] = []
    for word in words:
        if found and found[-1][0].text.startswith("-") and not re.match(r"--?[A-Za-z]|[+~\w.]+=", word.text):
            found[-1] += (word,)
        else:
            found.append((word,))
    return found


def _either(ways: Sequence[Sequence[tuple[Word, ...]]], why: str) -> Array:
    """Return the words of several arrays, of which a variable has one: those that are not in all of them may be there.

    Where all have an option, what comes last counts: so what is not in the first one comes after it.
    """
    texts = [[tuple(it._replace(line=0) for it in unit) for unit in way] for way in ways]
    shared = [unit for unit in texts[0] if all(unit in way for way in texts[1:])]
    found: list[Word] = []
    seen: list[tuple[Word, ...]] = []
    for way, plain in zip(ways, texts):
        for unit, text in zip(way, plain):
            if text not in seen:
                seen.append(text)
                found += unit if text in shared else (it._replace(maybe=it.maybe or why) for it in unit)
    return Array(found)

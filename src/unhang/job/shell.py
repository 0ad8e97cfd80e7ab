"""The commands of a shell script, as far as it tells them by itself: read, and never run.

What depends on a condition, on the environment or on another command is unknown, and says why.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from unhang.job.words import (
    MOST,
    Array,
    NoShellError,
    Variables,
    Word,
    by_default,
    end_of_bracket,
    end_of_word,
    expanded,
    merged,
    several,
    unknown,
)

DEEPEST = 8
"""Scripts within scripts, as in ``bash -c "..."``."""
_OPERATOR = re.compile(r"&&|\|\||;;&|;&|;;|\|&|[;&|()\n]")
_REDIRECT = re.compile(r"(?:\d+|&)?(<<<|<<-?|>>|[<>]&|&>>|&>|>\||[<>])(?!\()[ \t]*(\d+(?=\s)|-(?=\s))?")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?=)", re.ASCII)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_READS = ("read", "mapfile", "readarray", "let", "getopts", "printf")
_ASKS = ("command", "which", "grep", "type", "hash", "false")
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge,
}  # fmt: skip
_FED = ("bash", "sbatch", "sh", "srun", "ssh")
_SHELLS = ("bash", "sh", "zsh", "dash")


class Command(NamedTuple):
    """A command of a script."""

    words: tuple[Word, ...]
    environ: Mapping[str, Word]
    """The variables of the script, and those that are set for this command alone."""


class _Token(NamedTuple):
    kind: str
    """``word``, ``array`` (an assignment of one), ``operator``, or ``fed``: a text that is fed to the last command."""
    text: str
    line: int
    items: tuple[_Token, ...] = ()


class Truth(NamedTuple):
    """Whether a command of a script succeeds, or runs."""

    holds: bool | None
    unless: str = ""
    """The variable by whose default that is so."""
    is_asked: bool = False
    """Whether the script runs it to know that."""


_OPEN = Truth(None, is_asked=True)


class _Block(NamedTuple):
    """A part of a script that may run or not: it began with these variables, and its ways ended with those."""

    kind: str
    before: Variables
    ends: list[Variables]
    way: Truth
    """Whether what is being read runs."""
    is_settled: bool = False
    """Whether one of its ways is known to be taken."""
    subject: tuple[Word, ...] = ()
    """What a case compares."""


def commands(text: str, variables: Variables, notes: list[str], line: int = 1) -> list[Command]:
    """Return the commands of a script in order; its variables and what is to be told of it are added.

    Raises NoShellError.
    """
    reader = _Reader(variables, notes)
    reader.read(text, line, 0)
    return reader.found


def _tokens(text: str, line: int) -> Iterator[_Token]:
    at, heredocs = 0, list[str]()
    while at < len(text):
        if text.startswith("\\\n", at):
            at, line = at + 2, line + 1
        elif text[at] in " \t\r":
            at += 1
        elif text[at] == "#":
            at = end if (end := text.find("\n", at)) >= 0 else len(text)
        elif found := _REDIRECT.match(text, at):
            at = found.end()
            if not found[2]:
                while text[at : at + 1] in (" ", "\t"):
                    at += 1
                end = end_of_word(text, at)
                if found[1] in ("<<", "<<-"):
                    heredocs.append(text[at:end].strip("'\"\\"))
                line += text.count("\n", at, end)
                at = end
        elif text.startswith("((", at):
            end = end_of_bracket(text, at)
            yield _Token("word", text[at:end], line)
            line += text.count("\n", at, end)
            at = end
        elif found := _OPERATOR.match(text, at):
            yield _Token("operator", found[0], line)
            at = found.end()
            if found[0] == "\n":
                line += 1
                for mark in heredocs:
                    body = re.compile(rf"^[ \t]*{re.escape(mark)}[ \t]*$", re.MULTILINE).search(text, at)
                    end = body.end() if body else len(text)
                    yield _Token("fed", text[at : body.start() if body else end].replace("\\$", "$"), line)
                    line += text.count("\n", at, end)
                    at = end
                heredocs.clear()
        else:
            end = end_of_word(text, at)
            raw = text[at:end]
            if (found := _ASSIGNED.fullmatch(raw)) and text[end : end + 1] == "(":
                items, end = _array(text, end + 1, line)
                yield _Token("array", raw, line, items)
            elif end == at:
                raise NoShellError(f"line {line} has a {text[at]} where none can be")
            else:
                yield _Token("word", raw, line)
            line += text.count("\n", at, end)
            at = end
    yield _Token("operator", "\n", line)


def _array(text: str, at: int, line: int) -> tuple[tuple[_Token, ...], int]:
    """Return the words of an array, whose bracket is open, and the index after it."""
    items: list[_Token] = []
    while at < len(text) and text[at] != ")":
        if text[at] == "#":
            at = end if (end := text.find("\n", at)) >= 0 else len(text)
        elif text.startswith("\\\n", at) or text[at].isspace():
            step = 2 if text[at] == "\\" else 1
            line += text.count("\n", at, at + step)
            at += step
        else:
            end = end_of_word(text, at)
            if end == at:
                raise NoShellError(f"line {line} has a {text[at]} in an array")
            items.append(_Token("word", text[at:end], line))
            line += text.count("\n", at, end)
            at = end
    if at >= len(text):
        raise NoShellError("an array is not closed")
    return tuple(items), at + 1


class _Reader:
    def __init__(self, variables: Variables, notes: list[str]) -> None:
        self.found: list[Command] = []
        self._now = variables
        self._notes = notes
        self._blocks: list[_Block] = []
        self._depth = 0
        self._truth: Truth = _OPEN  # of the last command
        self._is_inside = False  # of [[ ]]
        self._last = ""  # command
        self._given = dict(variables)  # by the files before it
        self._functions: dict[str, set[str]] = {}
        """The variables that each sets, by its name."""

    def read(self, text: str, line: int, depth: int) -> None:
        if depth > DEEPEST:
            raise NoShellError("it is nested too deeply")
        self._depth, outer, self._blocks = depth, self._blocks, []
        words: list[_Token] = []
        patterns: list[str] | None = None  # of a case, while they are read
        before = ""  # the operator before a command
        for token in _tokens(text, line):
            if patterns is not None:
                if token.text == "esac":
                    patterns = None
                    self._close("esac", token)
                elif token.text == ")" and token.kind == "operator":
                    self._case(patterns, token)
                    patterns = None
                elif token.kind == "word":
                    patterns.append(token.text)
            elif token.kind == "fed":  # to a command: most take no script
                if self._last in _FED:
                    self.read(token.text, token.line, depth + 1)
            elif token.kind != "operator":
                if len(words) > MOST:
                    raise NoShellError("a command of it is too long")
                if not words and self._keyword(token, before):
                    before = ""
                    continue
                words.append(token)
                if len(words) == 3 and words[0].text == "case" and token.text == "in":
                    self._open("case", subject=tuple(expanded(f'"{words[1].text}"', token.line, self._now)))
                    words, patterns = [], []
            elif token.text == "(" and len(words) == 1 and words[0].kind == "word" and words[0].text != "[[":
                words = [words[0]._replace(kind="function")]
            elif token.text == ")" and words and words[0].kind == "function":
                self._open("function", subject=(Word(words[0].text, words[0].line),))
                self._now["@"] = (several("the arguments of a function are not followed", token.line),)
                words = []
            else:
                if words:
                    self._command(words, before)
                    before, words = "", []
                if token.text in ("&&", "||"):
                    before = token.text
                elif self._is_inside and token.text in ("(", ")"):
                    self._truth = _OPEN
                elif token.text == "(":
                    self._open("(")
                elif token.text == ")":
                    self._close("(", token)
                elif token.text in (";;", ";&", ";;&"):
                    self._end_branch()
                    patterns = []
        self._blocks = outer

    def _keyword(self, token: _Token, before: str) -> bool:
        """Take a word that shapes the script, and return whether it was one."""
        word = token.text
        if word == "{" and self._blocks and self._blocks[-1].kind == "function":
            self._blocks[-1] = self._blocks[-1]._replace(kind="{ function")
        elif word == "{":
            self._open("{", self._way(before))
        elif word in ("if", "while", "until"):
            self._open("if" if word == "if" else "loop")
        elif word == "then":
            self._begin(self._truth)
        elif word in ("elif", "else"):
            self._end_branch()
            if word == "else":
                self._begin(Truth(True))
        elif word in ("fi", "done", "}"):
            self._close(word, token)
        elif word not in ("do", "time"):
            return False
        return True

    def _open(self, kind: str, way: Truth | None = None, subject: tuple[Word, ...] = ()) -> None:
        self._blocks.append(_Block(kind, dict(self._now), [], way or Truth(True), subject=subject))
        if len(self._blocks) > 100:
            raise NoShellError("it is nested too deeply")

    def _begin(self, truth: Truth) -> None:
        """Begin a branch that runs if this holds, and no branch before it did."""
        if self._blocks:
            block = self._blocks[-1]
            way = Truth(False) if block.is_settled else truth
            self._blocks[-1] = block._replace(way=way, is_settled=block.is_settled or truth.holds is True)

    def _case(self, patterns: Sequence[str], token: _Token) -> None:
        """Begin a branch of a case."""
        if not self._blocks or self._blocks[-1].kind != "case":
            raise NoShellError(f"line {token.line} has a ) where none can be")
        subject = self._blocks[-1].subject
        if "*" in patterns:
            self._begin(Truth(True, subject[0].unless if subject else ""))
        elif len(subject) == 1 and not subject[0].unknown:
            plain = [pattern.strip("'\"") for pattern in patterns]
            holds = any(fnmatchcase(subject[0].text, pattern) for pattern in plain)
            self._begin(_OPEN if any("$" in it for it in plain) else Truth(holds, subject[0].unless))
        else:
            self._begin(_OPEN)

    def _end_branch(self) -> None:
        if self._blocks:
            block = self._blocks[-1]
            if block.way.holds is not False:
                block.ends.append(dict(self._now))
            self._set(block.before)
            self._blocks[-1] = block._replace(way=Truth(True))

    def _close(self, word: str, token: _Token) -> None:
        kind = {"fi": "if", "done": "loop", "}": "{", "(": "(", "esac": "case"}[word]
        if not self._blocks or self._blocks[-1].kind.split()[0] != kind:
            raise NoShellError(f"line {token.line} has a {token.text} where none can be")
        block = self._blocks[-1]
        if kind == "(":
            self._set(block.before)  # a shell of its own
        elif kind in ("loop", "{"):
            if block.kind == "{ function":
                changed = {name for name, value in self._now.items() if value != block.before.get(name)}
                self._functions[block.subject[0].text] = changed - {"@"}
                self._now.pop("@", None)
                self._now.update({"@": block.before["@"]} if "@" in block.before else {})
            if kind == "loop" or block.kind != "{" or block.way.holds is None:
                self._set(merged(block.before, [dict(self._now), block.before]))
        else:
            if word == "fi":
                self._end_branch()
            block = self._blocks[-1]
            ends = block.ends if block.is_settled else [*block.ends, block.before]
            self._set(merged(block.before, ends))
        self._blocks.pop()
        if kind != "{":
            self._truth = _OPEN

    def _set(self, values: Mapping[str, tuple[Word, ...]]) -> None:
        values = dict(values)
        self._now.clear()
        self._now.update(values)

    def _way(self, operator: str) -> Truth:
        """Return whether a command after an operator runs."""
        holds = self._truth.holds
        if not operator or (operator == "&&" and holds is None and not self._truth.is_asked):
            return Truth(True)
        return Truth(holds if operator == "&&" or holds is None else not holds, self._truth.unless)

    def _command(self, tokens: list[_Token], operator: str) -> None:
        if tokens[0].text in ("for", "select"):
            self._open("loop")
        is_test = self._is_inside or tokens[0].text in ("[", "[[", "!", "test")
        self._is_inside = (self._is_inside or any(it.text == "[[" for it in tokens[:2])) and tokens[-1].text != "]]"
        self._last = tokens[0].text
        if any(block.way.holds is False for block in self._blocks):
            self._last = ""
            return
        last = self._truth
        way = self._way(operator)
        if is_test:
            now = self._tested(tokens)
        elif way.holds is False:
            return
        else:
            before = dict(self._now)
            self._run(tokens, way.unless)
            if way.holds is None:
                self._set(merged(before, [dict(self._now), before]))
            name = tokens[0].text
            now = Truth(None, is_asked=name in _ASKS) if name not in ("true", ":") else Truth(True)
        self._truth = _both(last, now, operator) if operator else now

    def _tested(self, tokens: Sequence[_Token]) -> Truth:
        """Return what a test says."""
        words = [
            expanded(token.text, token.line, self._now) or [Word("", token.line)]
            for token in tokens
            if token.text not in ("[", "[[", "]", "]]", "test")
        ]
        flat = [it[0] for it in words if len(it) == 1]
        is_not = bool(flat) and flat[0].text == "!"
        flat = flat[is_not:]
        if len(flat) + is_not != len(words) or any(it.unknown or it.maybe for it in flat):
            return _OPEN
        unless = next((it.unless for it in flat if it.unless), "")
        holds = _compared([it.text for it in flat])
        return Truth(holds if holds is None or not is_not else not holds, unless, True)

    def _run(self, tokens: list[_Token], unless: str) -> None:
        unless = unless or next((it.way.unless for it in self._blocks if it.way.unless), "")
        number = 0
        while number < len(tokens) and (tokens[number].kind == "array" or _ASSIGNED.match(tokens[number].text)):
            number += 1
        own, rest = tokens[:number], tokens[number:]
        if not rest:
            for token in own:
                self._assign(token, self._now, unless)
            return
        name = rest[0].text
        if name in ("for", "select") and len(rest) > 1:
            self._now[rest[1].text] = (unknown(f"{rest[1].text} is another one in each round", rest[0].line),)
        elif name in _DECLARES:
            is_reference = any(re.match(r"-\w*n", token.text) for token in rest[1:])  # one name then stands for another
            for token in rest[1:]:
                if is_reference and (both := re.fullmatch(r"(\w+)=(\w+)", token.text)):
                    self._now.update({each: (unknown(f"{each} has two names", token.line),) for each in both.groups()})
                    continue
                if token.kind == "array" or _ASSIGNED.match(token.text):
                    self._assign(token, self._now, unless)
        elif name in _READS:
            for token in rest[1:]:
                if found := re.match(r"[A-Za-z_]\w*", token.text):
                    if name != "printf" or rest[1].text == "-v":
                        make = several if name in ("mapfile", "readarray") else unknown
                        self._now[found[0]] = Array([make(f"{found[0]} is read when the script runs", token.line)])
        elif name.startswith("(("):
            for changed in re.findall(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)", name):
                self._now[changed] = (unknown(f"{changed} is not worked out", rest[0].line),)
        elif name == "unset":
            self._now.update({token.text: (Word("", token.line),) for token in rest[1:]})
        elif name in ("source", "."):
            others = " ".join(token.text for token in rest[1:2])
            self._sourced(others, rest[0].line)
        elif name == "set" and [token.text for token in rest[1:2]] == ["--"]:
            self._now["@"] = tuple(it for token in rest[2:] for it in expanded(token.text, token.line, self._now))
        elif name in self._functions:
            for each in self._functions[name]:
                self._now[each] = (unknown(f"{each} is set in {name}", rest[0].line),)
        else:
            if "@" not in self._now and any(re.search(r"\$\{?[@*]", token.text) for token in rest):
                told = "passes on what the script itself is given: if that is anything, name it by --setting"
                self._notes.append(f"line {rest[0].line} {told}")
            environ = {key: value[0] for key, value in self._now.items() if value}
            values: Variables = dict(self._now)
            for token in own:
                self._assign(token, values, unless)
            environ.update({key: value[0] for key, value in values.items() if value})
            self._found([it for token in rest for it in expanded(token.text, token.line, self._now)], environ)

    def _sourced(self, file: str, line: int) -> None:
        """Take what another script sets: what the files before this one do, or else anything that was set here."""
        if self._given:
            self._now.update(self._given)
            return
        self._notes.append(f"line {line} reads {file}: give it too, before this file")
        if file.rpartition("/")[2] not in ("activate", "conda.sh"):
            self._now.update({name: (unknown(f"{name} may be set by {file}", line),) for name in self._now})

    def _found(self, words: Sequence[Word], environ: Mapping[str, Word]) -> None:
        if words and words[0].text == "eval":
            words = [word._replace(raw=part) for word in words[1:] for part in _parts(word.raw)]
        for number, word in enumerate(words[:-1]):
            if word.text.rpartition("/")[2] in _SHELLS:
                script = next((at for at in range(number + 1, len(words) - 1) if _is_c(words[at])), 0)
                if script and not words[script + 1].open and all(_is_option(it) for it in words[number + 1 : script]):
                    outer, depth = len(self.found), self._depth
                    self.read(words[script + 1].raw, words[script + 1].line, depth + 1)
                    self._depth = depth
                    # what starts it, such as srun, says how often
                    self.found[outer:] = [it._replace(words=(*words[:number], *it.words)) for it in self.found[outer:]]
                    return
        self.found.append(Command(tuple(words), environ))

    def _assign(self, token: _Token, into: Variables, unless: str) -> None:
        found = _ASSIGNED.match(token.text)
        assert found
        name, index, sign = found.groups()
        old = self._now.get(name, ()) if sign == "+=" else ()
        if token.kind == "array":
            new = [it for item in token.items for it in expanded(item.text, item.line, self._now)]
            into[name] = Array((*old, *(by_default(it, unless) for it in new)))
        elif index:
            into[name] = (unknown(f"{name}{index} is not worked out", token.line),)
        else:
            words = expanded(token.text[found.end() :], token.line, self._now)
            if len(words) != 1 or old:
                words = [Word("".join(it.raw for it in old[:1]) + " ".join(it.raw for it in words), token.line)]
            into[name] = type(old)((by_default(words[0], unless), *old[1:]))


def _both(one: Truth, other: Truth, operator: str) -> Truth:
    """Return what two commands come to that ``&&`` or ``||`` joins."""
    decides = operator == "||"
    unless = one.unless or other.unless
    if decides in (one.holds, other.holds):
        return Truth(decides, unless, True)
    return Truth(None if None in (one.holds, other.holds) else not decides, unless, one.is_asked or other.is_asked)


def _compared(words: Sequence[str]) -> bool | None:
    """Return what a test of known words says; None for one that depends on more."""
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return bool(words[1]) is (words[0] == "-n")
    if len(words) == 1:
        return bool(words[0])
    if len(words) != 3:
        return None
    left, sign, right = words
    if sign in ("=", "==", "!="):
        return fnmatchcase(left, right) is (sign != "!=")
    numbers = [int(it) if re.fullmatch(r"-?\d{1,18}", it) else None for it in (left, right)]
    if sign not in _COMPARED or None in numbers:
        return None
    return bool(_COMPARED[sign](*numbers))


def _is_option(word: Word) -> bool:
    return word.text.startswith("-")


def _is_c(word: Word) -> bool:
    return bool(re.fullmatch(r"-[a-z]*c", word.text))


def _parts(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()

"""The gate: whatever a text holds, each encoder shows it, and where it ends up it does nothing."""

import ast
import html
import json
import random
import re
import subprocess
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import runner
from unhang import gate
from unhang.draft import reads, skeleton
from unhang.draft.modules import Rewrite
from unhang.draft.origin import Origin
from unhang.draft.replacements import Replacement
from unhang.draft.skeleton import Draft
from unhang.shapes.catalog import Target
from unhang.tell import terminal

PIECES = (
    "\n", "\r", "\r\n", "\t", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\xa0", "\u3000", "\0", "\x7f",
    "\x9b31m", "\x1b[2J", "\x1b]8;;http://e\x07", "\x1b]52;c;eA==\x1b\\", "\u202e", "\u2066", "\u200f", "\ufeff",
    "\u200b", "\udcff", "\ud800", "\U000e0041", "::error::", "::error file=a,line=1::b", "::set-output name=x::y",
    "::add-mask::x", "::stop-commands::x", "::", ":", "##[group]", "##[error]x", "##", "#", "[", "]",
    "##vso[task.setvariable x=y]", "%0A", "%", ",", "=", "|", "`", "```", "<script>", "<!--", "](http://e)", "![a](b)",
    "*a*", "_", "www.e.de", "@a", "&lt;", "#1", "---", "1. ", "- ", "'''", '"""', "'", '"', "\\", "\\\n", "\\N{",
    "{0}", "{{", "%s", " ", "  ", "a", "é", "中", "b c", "# coding: latin-1", "x" * 300,
)  # fmt: skip
PLAIN = ("/site/verl/a b.py", "verl 0.7.1", "run: unhang apply --target '/a b' && x", "caf\xe9 中 (1, 2) [3] {4} 50 %")


def texts() -> Iterator[str]:
    yield from (*PIECES, *PLAIN, "", "x" * 1_000_000, "\x1b" * 100_000, "::error::" * 50_000)
    chosen = random.Random(27)
    for _ in range(3_000):
        yield "".join(chosen.choices(PIECES, k=chosen.randint(2, 8)))


TEXTS = tuple(texts())


def acts(text: str) -> set[str]:
    """Return the letters of a text that a terminal may act on, or that end a line."""
    return {letter for letter in text if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")}


def shown(text: str) -> str:
    """Return a text with the escapes that stand for what it cannot show."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def test_a_line_shows_each_text_and_no_terminal_or_runner_acts_on_it() -> None:
    for text in TEXTS:
        line = gate.line(text)
        assert (acts(line), len(line.split("\n"))) == (set(), 1)
        assert len(line) <= 10 * gate.LONGEST + 100
        for printed in (line, terminal.wrapped(line, 20), f"error[io]: {line}", f"  in: {line}", f"    {line}"):
            assert not runner.commands(printed), text
        assert len(text) > 1_000 or gate.line(line) == line
    assert [gate.line(text) for text in PLAIN] == [*PLAIN]


def test_an_annotation_is_one_command_whose_parts_are_the_texts() -> None:
    for text in TEXTS:
        command = gate.command("error", text, file=text, title="b")
        assert runner.commands(command) == [command]
        found = re.fullmatch(r"::error file=([^:,\n]*),title=b::([^\n]*)", command)
        assert found
        file, message = (re.sub("%(..)", lambda it: chr(int(it[1], 16)), part) for part in found.groups())
        assert acts(found[2]) == set()
        if (
            not runner.commands("\n".join(f" {word}" for word in text.split(" ")))
            and len(text) < 1_000
            and ":" not in text
        ):
            assert file == message == "\n".join(map(gate.line, text.split("\n")))


def test_markdown_is_a_cell_and_a_paragraph_that_show_the_text() -> None:
    for text in TEXTS:
        cell = gate.markdown(text)
        assert "\n".join(map(shown, text.split("\n"))) == html.unescape(cell)
        assert not re.search(r"[][<>`*_!/:@|\\~$()\n]|www\.|&[^#]|#\D", cell)
        assert not re.match(r"[-+=>#\s]|\d+[.)](\s|$)", cell)


def test_json_is_strict_and_no_line_of_it_is_a_command() -> None:
    for text in TEXTS:
        document = gate.document({"a": [text, {text: 1}]})
        assert acts(document) <= {"\n"}
        assert not runner.commands(document)
        (read, (key,)) = json.loads(document)["a"]
        same = json.loads(json.dumps(text))  # in which two surrogates may be a pair
        assert read == key == "".join(ascii(c)[1:-1] if "\ud800" <= c <= "\udfff" else c for c in same)
        assert read.encode().decode() == read


def test_a_message_of_sarif_has_no_link() -> None:
    for text in TEXTS:
        assert not acts(gate.sarif(text))
        assert not re.search(r"\[[^]]*\]\(", gate.sarif(text))


def test_a_literal_is_the_text_and_shows_all_of_it() -> None:
    for text in TEXTS:
        literal = gate.literal(text)
        assert ast.literal_eval(literal) == text
        assert (acts(literal), "\n" in literal) == (set(), False)
        ((statement,),) = [ast.parse(f"[{literal}, 1]  # {literal}").body]
        assert ast.unparse(statement) == f"[{text!r}, 1]"


@pytest.mark.slow
def test_the_code_of_a_draft_has_its_texts_as_literals_only() -> None:
    """The title is a mail's subject, the rest is of a diff and a wheel."""
    plain = _draft("title", "file.py", "run", "1.0", "code()\n")
    for text in (*PIECES, *TEXTS[len(PIECES) :: 25]):
        for hostile in (
            _draft(text, text, "run", "1.0", "code()\n"),
            _draft("title", "file.py", text, text, f"{text}\n"),
        ):
            for name, source in hostile.items():
                if name.endswith(".py"):
                    assert _without_strings(source) == _without_strings(plain[name]), text
                    assert acts(source) <= {"\n"}
                elif name.endswith(".json"):
                    assert json.loads(source)["grade"] == "safeguard"
                else:
                    assert source.startswith("# my-fix\n\n")


def _draft(title: str, file: str, function: str, version: str, code: str) -> dict[str, str]:
    target = Target("my-fix", "verl", file, function)
    (head,) = ast.parse("def run(self, a):\n    if self.b.c and a: dist.barrier(d)").body
    assert isinstance(head, ast.FunctionDef)
    replaced = (Replacement("old()\n", code),)
    rewrite = Rewrite(target, "0" * 16, "1" * 16, replaced, (function,), reads.of([head]))
    origin = Origin(title, (title,), "3" * 40, "1", "2")
    return skeleton.files(Draft("my-fix", title, origin, "address", version, "2026-11-22", "ranks", title, (rewrite,)))


def _without_strings(source: str) -> str:
    """Return the syntax tree of code, with one string for all of them, and one name for the classes."""
    tree = ast.dump(ast.parse(source))
    tree = re.sub(r"Constant\(value=(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\)", "TEXT", tree)
    for name in sorted(re.findall(r"ClassDef\(name='(\w+)'", tree), key=len, reverse=True):
        tree = tree.replace(f"'{name}'", "CLASS")
    if "Name(id='Codemod'" in tree:
        constant = re.findall(r"Assign\(targets=\[Name\(id='(_\w+)'", tree)[0]
        tree = tree.replace(f"'{constant}'", "CONSTANT")
    return re.sub(r"TEXT(, TEXT)*", "TEXT", tree)


def test_a_diff_stays_one_or_is_refused() -> None:
    plain = b"--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n-a\r\n+b[:, ::2]\r\n \tc  # caf\xc3\xa9 ##\n x[ ::3]\n"
    assert gate.diff(plain) == plain
    for text in TEXTS:
        for mark in " +-":
            row = gate.diff(f"{mark}{text}".encode("utf-8", "surrogatepass")).decode()
            assert acts(row) <= {"\n", "\t", "\r"}
            assert not re.search(r"\r(?!\n|\Z)", row)
            assert not runner.commands(row), text


@pytest.mark.parametrize("tool", [("git", "apply", "--check"), ("patch", "-p1", "--dry-run", "--force")])
def test_a_section_that_needs_escapes_is_not_applied(tool: tuple[str, ...], tmp_path: Path) -> None:
    from unhang.rewrite import diff

    sections = []
    for name, line in (("one.py", b"x\n"), ("two.py", b"::error::x\n"), ("three.py", b"\x1b[2J\n")):
        (tmp_path / name).write_bytes(b"a\n" + line)
        sections.append(diff._section(name, b"a\n" + line, b"b\n" + line))
    for form, code in (diff.as_patch, 0), (diff.as_text, 1):
        done = subprocess.run(tool, input=b"".join(map(form, sections)), cwd=tmp_path, capture_output=True, check=False)
        assert (done.returncode != 0) == code, done
    assert diff.as_text(sections[0]) == sections[0]


def test_html_shows_the_text_between_tags_and_in_quotes() -> None:
    text = gate.html("a<b>&\"'\x1b\u202e\nc")
    assert text == "a&#60;b&#62;&#38;&#34;&#39;\\x1b\\u202e\nc"

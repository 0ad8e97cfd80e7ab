"""Shapes: equal on Python 3.10 to 3.13, blind to what has no meaning, and to nothing else."""

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import unhang
from support import sources, wheels
from unhang.shapes import catalog
from unhang.shapes.shape import bound_names, digest, find, mentions, parse, parse_lines

MINORS = (10, 11, 12, 13)
# Prints the digests and the outlines of whole files and of the named functions, as its interpreter computes them.
SCRIPT = """
import ast, json, sys
from unhang.shapes.outline import placed_outline
from unhang.shapes.shape import digest, find
found = {}
for path, functions in json.load(sys.stdin).items():
    with open(path, "rb") as file:
        tree = ast.parse(file.read())
    # every statement and f-string on its own, so that a difference shows where it is
    nodes = [node for function in functions for node in find(tree, function)] or list(ast.walk(tree))
    found[path] = [digest(tree)] + [digest(node) for node in nodes if isinstance(node, (ast.JoinedStr, ast.stmt))]
    found[path] += [placed_outline(node) for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
print(json.dumps([sys.version_info[1], found]))
"""
NASTY = r'''# -*- coding: utf-8 -*-
"""The module's docstring."""
from __future__ import annotations
import os.path as p, sys
x = 1 # type: int
for i in range(3): # type: int
    pass
def f(a, /, b: int = 1, *c, d=None, **e) -> "u": # type: (...) -> None
    """docstring"""
    global g
    width, precision, fill = 10, 3, ">"
    plain = "a" "b" 'c' """d
e""" u"f" u'' r"\g" "\N{EM DASH}\u00e9\U0001F600" "\ud800" "é😀"
    raw = b"\x00\xff" b"b" rb"\d" Rb'\''
    huge = 123456789012345678901234567890, 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF, 0o17, 0b11, 1_000_000, HUGE
    numbers = 1.0, -0.0, 1e999, -1e999, 1e-400, .5, 1j, 1e999j, 10 ** -2, True, None, ..., not 1, ~1, +1
    f0 = f"" f'' "" f"{{}}" f"{{{x}}}" "{}" f"a{x}b" "c{d}" f"{x}" "e"
    f1 = f"{x!r:>{width}.{precision}}" f"{x!s:{fill}{width}}" f"{x!a}" f"{x:}" f"{x!r:}"
    f2 = f"{x=}" f"{x = }" f"{x = !s:^{width}.{precision}}" f"{ x+1 = :>10}" f"{x=!r}" f"{x=:}"
    f3 = f"{'nested' f'{x!r:{width}}' 'more'}" f"{[y for y in (1, 2)]!r}" f"{(lambda z: z)(1)}" f"{x:%H:%M}"
    f4 = f"""multi {
        x
    } line {x:{
        width
    }} end
"""
    f5 = rf"\d{x}\{x}" f"\n{x}\t{x:\x3e10}" f"{x:{'>'}{10}}" f"{x:a{width}b{precision}c}" f"é{x}😀" f"{x}\N{EM DASH}"
    f6 = f"{x:{{}}}" if False else f"{ {'a': 1}['a'] }" f"{x!r:{{width}}}" f"{'{'}"
    f7 = f"{yield_!r}" f"{x if x else 'y'}" f"{x,}" f"{*c,}" f"{(x := 5)}" f"{x:=5}" f"{a != b}" f"{a >= b:>5}"
    (y := 5), [*c, *range(3)], {**e, "k": 1, **{}}, {*c}
    first, *rest = c; (one, *_), [two] = c, c
    a[1:2, ::3, ...], a[b, c], a[b,], a[()], a[lambda: 0]
    @(lambda fn: fn)
    @p.join
    async def g(*, k: int, l=[]) -> None:
        "another docstring"
        async with a as b, c() as (d, [e]): await b
        async for z in y: yield z
        else: return
        return
    class K(p, metaclass=type, **e):
        """A class has one too."""
        z: int
        z: int = 1
        (z): int = 2
        def h(self): "nothing else"
    with (open("a") as one, open("b") as two): ...
    match x, *c:
        case 1 | -2, 1+2j, *_ if y: pass
    try: raise E from None
    except (A, B) as err: del err, (a), [b]
    except C: ...
    else: nonlocal_ = 1
    finally: assert x, "why"
    while x: break
    else: x += 1; x @= 2; x //= 3; x **= -1
    lambda *args, k=1, **kw: (yield)
    return a < b <= c != d is e is not f not in g and h or i if j else k
def m(x):
    match x:
        case {"k": v, **rest}: pass
        case K(1, z=[_, *others]) as whole: pass
        case (1, 2) | [3, *_] | K() | None | True | p.sep: pass
        case -1.5 | "a" "b" | b"c": pass
        case _: pass
'''.replace("HUGE", "0x" + "f" * 5000)


def parsed(code: str) -> ast.AST:
    (node,) = ast.parse(code).body
    return node


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for any interpreter's path: it contains the `unhang` under test, without its dependencies."""
    folder = tmp_path_factory.mktemp("library")
    assert unhang.__file__ is not None
    os.symlink(Path(unhang.__file__).parent, folder / "unhang")
    return folder


@pytest.fixture(scope="module")
def files(folder: Path) -> dict[str, list[str]]:
    """NASTY, and the target files of the releases that the tests fetch, each content once, with their functions."""
    nasty = folder / "nasty.py"
    nasty.write_text(NASTY, encoding="utf-8")
    found: dict[str, list[str]] = {str(nasty): []}
    core = "0.10.0 0.12.0 0.12.3 0.13.1 0.14.0 0.15.3 0.16.1 0.17.1 0.18.2 0.19.2 0.16.0rc0.dev132550".split()
    releases = {"megatron-core": core, "verl": ["0.7.1", "0.9.1"], "ms-swift": ["4.0.0", "4.6.0"]}
    releases |= {"megatron-bridge": ["0.3.0", "0.6.2"], "mcore-bridge": ["1.0.2", "1.4.2"], "trl": ["0.22.0", "1.9.0"]}
    for target in (target for fix in catalog.fixes().values() for target in fix.targets):
        project = "megatron-core" if target.upstream == "megatron-lm" else target.upstream
        for version in releases[project]:
            data = wheels.read(project, version, target.file)
            if data is not None:
                path = folder / f"{hashlib.sha256(data).hexdigest()}.py"
                path.write_bytes(data)
                functions = found.setdefault(str(path), [])
                functions += [target.function] if target.function not in functions else []
    return found


def digests(python: str, folder: Path, files: dict[str, list[str]]) -> tuple[int, dict[str, list[object]]]:
    """Return an interpreter's minor version, and what it computes of these files."""
    environ = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, "-W", "ignore", "-c", SCRIPT]  # newer Pythons warn about escapes in upstream's code
    done = subprocess.run(command, input=json.dumps(files), env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    minor, found = json.loads(done.stdout)
    return minor, found


@pytest.fixture(scope="module")
def ours(folder: Path, files: dict[str, list[str]]) -> dict[str, list[object]]:
    return digests(sys.executable, folder, files)[1]


@pytest.mark.slow
@pytest.mark.parametrize("minor", MINORS)
def test_shapes_and_outlines_are_equal_on_every_python(
    minor: int, folder: Path, files: dict[str, list[str]], ours: dict[str, list[object]]
) -> None:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    own = sys.executable if sys.version_info[1] == minor else shutil.which(f"python3.{minor}")
    for python in map(str, filter(None, (own, *pyenv.glob(f"versions/3.{minor}.*/bin/python")))):
        if subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0:
            break
    else:
        pytest.skip(f"no Python 3.{minor} here: neither with pyenv nor as python3.{minor} on PATH")
    version, found = digests(python, folder, files)
    assert version == minor
    assert len(files) >= 26
    assert len(ours[str(folder / "nasty.py")]) > 90
    assert found == ours


# -- what has no meaning ----------------------------------------------------------------------------------------------

PLAIN = "def f(a, b=1):\n    return a + b\n"
SAME = [
    ("x = 'ab'", "x = u'a' \"b\""),
    ("x = 1000", "x = 1_000"),
    ("x = f'a{b}c'", "x = 'a' f'{b}' 'c'"),
    ("x = f'{b=}'", "x = f'b={b!r}'"),
    ("x = f'{b:}'", "x = f'{b}'"),
    ("class C:\n 'docs'\n x = 1", "class C:\n x = 1"),
    ("class C:\n def f(self):\n  'docs'\n  g()", "class C:\n def f(self):\n  g()"),
    ("async def f():\n 'docs'\n g()", "async def f():\n g()"),
    ("x = 1 # type: int", "x = 1"),
    (PLAIN, "\n\n# above\ndef f(a, b=1):  # behind\n    # inside\n\n    return a + b  # at the end\n"),
    (PLAIN, "def f(a, b=1):\n    u'another' ' docstring'\n    return a + b\n"),
    (PLAIN, "def f(\n\ta,\n\tb = 0x1,\n):\n\treturn (a\n\t\t+ b)\n"),
    (PLAIN, "def f(a, b=1):\r\n    return a + \\\r\n        b\r\n"),
    (PLAIN, "def f(a, b=1): # type: (int, int) -> int\n    return a + b;\n"),
]
OTHER = [
    *((PLAIN, PLAIN.replace("1", value)) for value in ("2", "True", "1.0", "1j", "'1'", "b'1'")),
    *((PLAIN, PLAIN.replace("a, b=1", arguments)) for arguments in ("a, *, b=1", "a, /, b=1", "a, b", "a: int, b=1")),
    *((PLAIN, PLAIN.replace("a + b", result)) for result in ("a - b", "b + a", "(a + b,)", "a + b\n    return")),
    *((PLAIN, PLAIN.replace(":\n", f":\n    {first}\n")) for first in ("0", "'docs'; 'no docs'", "f'a'", "b'a'")),
    *((PLAIN, first + PLAIN) for first in ("@cached\n", "@cached()\n", "async ")),
    (PLAIN, PLAIN.replace("def f", "def g")),
    (PLAIN, PLAIN.replace("):", ") -> int:")),
    ("x = f'{b}'", "x = f'{b!s}'"),
    ("x = f'{b!r}'", "x = f'{b!s}'"),
    ("x = f'{b:>5}'", "x = f'{b:<5}'"),
    ("x = f'{b:>5}'", "x = f'{b}>5'"),
    ("x = f'{b:{c}}'", "x = f'{b:c}'"),
    ("x = f'{b}{c}'", "x = f'{b}' '{c}'"),
    ("x = f'{{b}}'", "x = f'{b}'"),
    ("x = f'a{b}'", "x = f'{b}a'"),
    ("x = 0.0", "x = -0.0"),
    ("x = '\\ud800'", "x = '\\ud801'"),
    ("x = [a]", "x = (a,)"),
    ("f(a, *b)", "f(*b, a)"),
    ("{**a}", "{None: a}"),
    ("from . import b", "from .. import b"),
    ("match x:\n case [a, *_]: pass", "match x:\n case [a, *b]: pass"),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_these_two_have_one_shape(left: str, right: str) -> None:
    assert digest(parsed(left)) == digest(parsed(right))


@pytest.mark.parametrize(("left", "right"), OTHER)
def test_these_two_have_other_shapes(left: str, right: str) -> None:
    assert digest(parsed(left)) != digest(parsed(right))


def test_a_digest_is_what_it_was_when_the_matrix_was_made() -> None:
    """A change to how shapes are computed invalidates all of compat/data; this test then fails on every Python."""
    target = next(item for item in catalog.fix("expert-dp-warmup").targets if item.upstream == "ms-swift")
    for version in ("4.0.0", "4.6.0"):
        source = sources.Case("wheel", target, version).load()
        assert re.fullmatch("[0-9a-f]{16}", source.digest)
        assert source.digest == catalog.releases()["ms-swift"][version].shapes[f"{target.file}::{target.function}"]


# -- parsing ----------------------------------------------------------------------------------------------------------


def test_upstreams_warnings_are_not_shown(recwarn: pytest.WarningsRecorder) -> None:
    parse(b"x = '\\d'\nassert (x, 'always true')\n")
    assert len(recwarn) == 0


@pytest.mark.parametrize(("first", "indentation"), [(1, ""), (7, ""), (2, "    "), (7, "\t")])
def test_the_lines_of_a_function_are_parsed_with_their_numbers(first: int, indentation: str) -> None:
    rows = [f"{indentation}{row}\n" for row in ("@cached", "def f(a):", f"{indentation or ' '}return a")]
    function = parse_lines("".join(rows), first)
    assert (function.name, function.lineno, function.end_lineno) == ("f", first + 1, first + 2)
    assert function.decorator_list[0].lineno == first


@pytest.mark.parametrize("code", ["class f: pass\n", "f = 1\n", "  f = 1\n"])
def test_lines_that_are_not_a_function_are_refused(code: str) -> None:
    with pytest.raises(TypeError, match="line 9 is not a function definition"):
        parse_lines(code, 9)
    with pytest.raises(ValueError, match="too many values"):
        parse_lines("def f(): pass\ndef g(): pass\n", 3)


# -- finding a function -----------------------------------------------------------------------------------------------

MODULE = """
def f(): return 1

class C:
    def f(self): return 2
    class D:
        async def f(self): return 3
    if True:
        def g(self): return 4

def outer():
    def f(): return 5
    class C:
        def g(self): return 6

if True:
    def h(): return 7
else:
    def h(): return 8

try:
    import a
    def i(): return 9
except ImportError:
    def i(): return 10
else:
    def j(): return 11
finally:
    def k(): return 12

with a:
    for _ in b:
        while c:
            def l(): return 13

class C:
    def twice(self): return 14

m = lambda: 15
def n(): return 16
def n(): return 17
"""


FOUND = "f 1, C.f 2, C.D.f 3, C.g 4, h 7 8, i 9 10, j 11, k 12, l 13, C.twice 14, n 16 17"


@pytest.mark.parametrize("name", [*"none C m outer.f D.f C.h C.D".split(), *FOUND.split(", ")])
def test_find(name: str) -> None:
    """The definitions of a name are those that return the numbers behind it."""
    name, *wanted = name.split()
    found = find(ast.parse(MODULE), name)
    assert [ast.unparse(node.body[0]) for node in found] == [f"return {number}" for number in wanted]


# A search may say yes too often, but never no.
YES = (
    "def f(): pass",
    "async  def\t f (): pass",
    "def \\\n  f(): pass",
    "def\\\r\nf(): pass",
    "def\x0cf(): pass",
    "# def f",
)
NO = "f()", "def ff(): pass", "def f_(): pass", "undef f", "class f: pass", "define f"


@pytest.mark.parametrize(("code", "there"), [*((code, True) for code in YES), *((code, False) for code in NO)])
def test_mentions(code: str, there: bool) -> None:
    assert mentions(code.encode(), "f") is there
    assert mentions(code.encode(), "C.f") is there


def test_what_is_found_is_mentioned() -> None:
    nodes = ast.walk(ast.parse(MODULE))
    names = [node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert len(names) == 17
    assert all(mentions(MODULE.encode(), name) for name in names)


# -- the names that a file binds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("f(x)\na.b = 1; a[0] = 2\nx: int", ""),
        ("def f():\n import a\n b = 1", "f"),
        ("class C:\n import a\n b = 1", "C"),
        ("x = [y for y in z]\nw = lambda y: y", "x w"),
        ("x: int = 1\ny += 1", "x y"),
        ("import a.b.c\nimport a.b as d, e\nfrom a import f, c as g\nfrom . import h", "a d e f g h"),
        ("x = y = 1\nw, (z, *v) = a", "w x y z v"),
        ("async def f(): pass\n@d\nclass C: pass", "f C"),
        ("if (x := 1):\n y = 2\nelif (w := 3):\n z = 4\nelse:\n import v", "v w x y z"),
        ("try:\n import a\nexcept ImportError:\n e = None; b = 1\nelse:\n c = 1\nfinally:\n d = 1", "a b c d e"),
        ("with a as b, c as (d, e):\n f = 1", "b d e f"),
        ("for a, b in c:\n d = 1\nelse:\n e = 1", "a b d e"),
        ("while (a := b):\n c = 1\nprint(x := 1)\nz = (y := 1)", "a c x y z"),
    ],
)
def test_bound_names(code: str, names: str) -> None:
    assert bound_names(ast.parse(code)) == set(names.split())

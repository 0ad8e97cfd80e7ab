"""Shapes: equal on Python 3.10 to 3.13, blind to what has no meaning, and to nothing else."""

from __future__ import annotations

import ast
import hashlib
import json
import os
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
# Prints the digests of whole files and of the named functions, as the interpreter that runs it computes them.
SCRIPT = """
import ast, json, sys
from unhang.shapes.shape import digest, find
found = {}
for path, functions in json.load(sys.stdin).items():
    with open(path, "rb") as file:
        tree = ast.parse(file.read())
    found[path] = [digest(tree)] + [[digest(node) for node in find(tree, function)] for function in functions]
    if not functions:
        found[path] += [digest(node) for node in ast.walk(tree) if isinstance(node, (ast.JoinedStr, ast.stmt))]
print(json.dumps([list(sys.version_info[:2]), found]))
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
    """Return the one statement of some code."""
    (node,) = ast.parse(code).body
    return node


def interpreter(minor: int) -> str:
    """Return an interpreter of this version; skip the test if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    installed = sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python"))
    own = sys.executable if sys.version_info[1] == minor else None
    for candidate in (own, *installed, shutil.which(f"python3.{minor}")):
        if candidate is not None:
            question = "import sys; print(sys.version_info[:2])"
            done = subprocess.run([str(candidate), "-c", question], capture_output=True, text=True, check=False)
            if done.stdout.strip() == str((3, minor)):
                return str(candidate)
    pytest.skip(f"no Python 3.{minor} here: neither with pyenv nor as python3.{minor} on PATH")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for any interpreter's path: it contains the `unhang` under test, without its dependencies."""
    folder = tmp_path_factory.mktemp("library")
    assert unhang.__file__ is not None
    os.symlink(Path(unhang.__file__).parent, folder / "unhang")
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The target files of the releases that the tests fetch, each content once, with the functions to look at."""
    folder = tmp_path_factory.mktemp("files")
    found: dict[str, list[str]] = {}
    core = "0.10.0 0.12.0 0.12.3 0.13.1 0.14.0 0.15.3 0.16.1 0.17.1 0.18.2 0.19.2 0.16.0rc0.dev132550".split()
    releases = {"megatron-core": core, "verl": ["0.7.1", "0.9.1"], "ms-swift": ["4.0.0", "4.6.0"]}
    for fix in catalog.fixes().values():
        for target in fix.targets:
            project = "megatron-core" if target.upstream == "megatron-lm" else target.upstream
            for version in releases[project]:
                data = wheels.read(project, version, target.file)
                if data is not None:
                    path = folder / f"{hashlib.sha256(data).hexdigest()}.py"
                    path.write_bytes(data)
                    functions = found.setdefault(str(path), [])
                    functions += [target.function] if target.function not in functions else []
    return found


def digests(python: str, library: Path, files: dict[str, list[str]]) -> tuple[list[int], dict[str, list[object]]]:
    """Return an interpreter's version, and the digests that it computes of these files."""
    # newer Pythons warn about escapes in a few strings of upstream's code
    done = subprocess.run(
        [python, "-W", "ignore", "-c", SCRIPT],
        input=json.dumps(files),
        env={**os.environ, "PYTHONPATH": str(library), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    version, found = json.loads(done.stdout)
    return version, found


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nasty") / "nasty.py"
    path.write_text(NASTY, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def ours(library: Path, files: dict[str, list[str]]) -> dict[str, list[object]]:
    """The digests that this interpreter computes of the files."""
    return digests(sys.executable, library, files)[1]


# -- what has no meaning ----------------------------------------------------------------------------------------------

PLAIN = "def f(a, b=1):\n    return a + b\n"


@pytest.mark.parametrize(
    "code",
    [
        PLAIN,
        "\n\n# above\ndef f(a, b=1):  # behind\n    # inside\n\n    return a + b  # at the end\n",
        'def f(a, b=1):\n    """A docstring."""\n    return a + b\n',
        "def f(a, b=1):\n    u'another' ' docstring'\n    return a + b\n",
        "def f(\n\ta,\n\tb = 0x1,\n):\n\treturn (a\n\t\t+ b)\n",
        "def f(a, b=1):\r\n    return a + \\\r\n        b\r\n",
        "def f(a, b=1): return a + b;\n",
        "def f(a, b=1): # type: (int, int) -> int\n    return a + b\n",
    ],
)
def test_these_have_one_shape(code: str) -> None:
    assert digest(parsed(code)) == digest(parsed(PLAIN))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("x = 'ab'", "x = u'a' \"b\""),
        ("x = 1000", "x = 1_000"),
        ("x = f'a{b}c'", "x = 'a' f'{b}' 'c'"),
        ("x = f'{b=}'", "x = f'b={b!r}'"),
        ("x = f'{b:}'", "x = f'{b}'"),
        ("x = (1)", "x = 1"),
        ("class C:\n 'docs'\n x = 1", "class C:\n x = 1"),
        ("class C:\n def f(self):\n  'docs'\n  g()", "class C:\n def f(self):\n  g()"),
        ("async def f():\n 'docs'\n g()", "async def f():\n g()"),
        ("x = 1 # type: int", "x = 1"),
        ("if a:\n b\nelif c:\n d", "if a:\n b\nelse:\n if c:\n  d"),
    ],
)
def test_these_two_have_one_shape(left: str, right: str) -> None:
    assert digest(parsed(left)) == digest(parsed(right))


# -- what has ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "@cached\ndef f(a, b=1):\n    return a + b\n",
        "@cached()\ndef f(a, b=1):\n    return a + b\n",
        "def f(a, b=2):\n    return a + b\n",
        "def f(a, b=True):\n    return a + b\n",
        "def f(a, b=1.0):\n    return a + b\n",
        "def f(a, b=1j):\n    return a + b\n",
        "def f(a, b='1'):\n    return a + b\n",
        "def f(a, b=b'1'):\n    return a + b\n",
        "def f(a, *, b=1):\n    return a + b\n",
        "def f(a, /, b=1):\n    return a + b\n",
        "def f(a, b):\n    return a + b\n",
        "def f(a: int, b=1):\n    return a + b\n",
        "def f(a, b=1) -> int:\n    return a + b\n",
        "def g(a, b=1):\n    return a + b\n",
        "def f(b, a=1):\n    return a + b\n",
        "def f(a, b=1):\n    return a - b\n",
        "def f(a, b=1):\n    return b + a\n",
        "def f(a, b=1):\n    return (a + b,)\n",
        "def f(a, b=1):\n    return a + b\n    return\n",
        "def f(a, b=1):\n    0\n    return a + b\n",
        "def f(a, b=1):\n    'docs'\n    'no docs'\n    return a + b\n",
        "def f(a, b=1):\n    f'no docs'\n    return a + b\n",
        "def f(a, b=1):\n    b'no docs'\n    return a + b\n",
        "async def f(a, b=1):\n    return a + b\n",
        "f = lambda a, b=1: a + b\n",
    ],
)
def test_these_have_other_shapes(code: str) -> None:
    assert digest(parsed(code)) != digest(parsed(PLAIN))


@pytest.mark.parametrize(
    ("left", "right"),
    [
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
        ("x = 'a b'", "x = 'a', 'b'"),
        ("x = [a]", "x = (a,)"),
        ("x = a[b, c]", "x = a[b][c]"),
        ("x = a[b:c]", "x = a[b::c]"),
        ("f(a, *b)", "f(*b, a)"),
        ("f(a=b)", "f(**{'a': b})"),
        ("{**a}", "{None: a}"),
        ("x: int", "x: int = None"),
        ("x: int = 1", "x = 1"),
        ("from a import b", "from .a import b"),
        ("from . import b", "from .. import b"),
        ("import a as b", "import a, b"),
        ("for x in y: pass", "for x in y: pass\nelse: pass"),
        ("raise a", "raise a from None"),
        ("try:\n a\nexcept b:\n c", "try:\n a\nexcept b as c:\n c"),
        ("global a, b", "global b, a"),
        ("x = a and b or c", "x = a and (b or c)"),
        ("match x:\n case a: pass", "match x:\n case A.a: pass"),
        ("match x:\n case [a, *_]: pass", "match x:\n case [a, *b]: pass"),
        ("with a as b, c: pass", "with a, c as b: pass"),
        ("class C(a): pass", "class C(metaclass=a): pass"),
        ("lambda a: b", "lambda b: a"),
        ("[a for b in c if d]", "[a for b in c for d in e]"),
        ("[a async for b in c]", "[a for b in c]"),
    ],
)
def test_these_two_have_other_shapes(left: str, right: str) -> None:
    assert digest(parsed(left)) != digest(parsed(right))


def test_a_digest_is_16_hexadecimal_digits() -> None:
    assert digest(parsed(PLAIN)) == "".join(c for c in digest(parsed(PLAIN)) if c in "0123456789abcdef")
    assert len(digest(parsed(PLAIN))) == 16


def test_a_digest_is_what_it_was_when_the_matrix_was_made() -> None:
    """A change to how shapes are computed invalidates all of compat/data; this test then fails on every Python."""
    target = next(item for item in catalog.fix("expert-dp-warmup").targets if item.upstream == "ms-swift")
    for version in ("4.0.0", "4.6.0"):
        source = sources.Case("wheel", target, version).load()
        assert source.digest == catalog.releases()["ms-swift"][version].shapes[f"{target.file}::{target.function}"]


# -- equal on every Python --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minor", MINORS)
def test_the_nasty_module_has_one_shape_on_every_python(minor: int, library: Path, nasty: Path) -> None:
    # each statement and each f-string on its own, so that a difference shows where it is
    version, found = digests(interpreter(minor), library, {str(nasty): []})
    assert version == [3, minor]
    own = digests(sys.executable, library, {str(nasty): []})[1]
    assert len(own[str(nasty)]) > 90
    assert found == own


@pytest.mark.parametrize("minor", MINORS)
def test_upstreams_files_have_one_shape_on_every_python(
    minor: int, library: Path, files: dict[str, list[str]], ours: dict[str, list[object]]
) -> None:
    version, found = digests(interpreter(minor), library, files)
    assert version == [3, minor]
    assert len(files) >= 25
    assert found == ours


# -- parsing ----------------------------------------------------------------------------------------------------------


def test_upstreams_warnings_are_not_shown(recwarn: pytest.WarningsRecorder) -> None:
    parse(b"x = '\\d'\nassert (x, 'always true')\n")
    assert len(recwarn) == 0


@pytest.mark.parametrize(("first", "indentation"), [(1, ""), (7, ""), (2, "    "), (7, "\t")])
def test_the_lines_of_a_function_are_parsed_with_their_numbers(first: int, indentation: str) -> None:
    rows = [f"{indentation}{row}\n" for row in ("@cached", "def f(a):", f"{indentation or ' '}return a")]
    function = parse_lines(rows, first)
    assert (function.name, function.lineno, function.end_lineno) == ("f", first + 1, first + 2)
    assert function.decorator_list[0].lineno == first


@pytest.mark.parametrize("code", ["class f: pass\n", "f = 1\n", "  f = 1\n"])
def test_lines_that_are_not_a_function_are_refused(code: str) -> None:
    with pytest.raises(TypeError, match="line 9 is not a function definition"):
        parse_lines([code], 9)


def test_more_than_one_definition_is_refused() -> None:
    with pytest.raises(ValueError, match="too many values"):
        parse_lines(["def f(): pass\n", "def g(): pass\n"], 3)


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


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("none", []),
        ("C", []),
        ("m", []),
        ("outer.f", []),
        ("D.f", []),
        ("C.h", []),
        ("C.D", []),
        ("f", [1]),
        ("C.f", [2]),
        ("C.D.f", [3]),
        ("C.g", [4]),
        ("h", [7, 8]),
        ("i", [9, 10]),
        ("j", [11]),
        ("k", [12]),
        ("l", [13]),
        ("C.twice", [14]),
        ("n", [16, 17]),
    ],
)
def test_find(name: str, wanted: list[int]) -> None:
    returned = []
    for node in find(ast.parse(MODULE), name):
        (statement,) = node.body
        assert isinstance(statement, ast.Return)
        assert isinstance(statement.value, ast.Constant)
        returned.append(statement.value.value)
    assert returned == wanted


@pytest.mark.parametrize(
    ("code", "there"),
    [
        ("f()", False),
        ("def ff(): pass", False),
        ("def f_(): pass", False),
        ("undef f", False),
        ("class f: pass", False),
        ("define f", False),
        ("def f(): pass", True),
        ("async  def\t f (): pass", True),
        ("class C:\n\tdef f(self): pass", True),
        ("def \\\n  f(): pass", True),
        ("def\\\r\nf(): pass", True),
        ("def\x0cf(): pass", True),
        ("# def f", True),  # a search may say yes too often, but never no
    ],
)
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
        ("", ""),
        ("f(x)", ""),
        ("a.b = 1; a[0] = 2", ""),
        ("def f():\n import a\n b = 1", "f"),
        ("class C:\n import a\n b = 1", "C"),
        ("x = [y for y in z]", "x"),
        ("x = lambda y: y", "x"),
        ("x: int", ""),
        ("x: int = 1", "x"),
        ("import a", "a"),
        ("import a.b.c", "a"),
        ("import a.b as c, d", "c d"),
        ("from a import b, c as d", "b d"),
        ("from . import a", "a"),
        ("x = y = 1", "x y"),
        ("x, (y, *z) = a", "x y z"),
        ("x += 1", "x"),
        ("async def f(): pass", "f"),
        ("@d\nclass C: pass", "C"),
        ("if (x := 1):\n y = 2\nelif (w := 3):\n z = 4\nelse:\n import v", "v w x y z"),
        ("try:\n import a\nexcept ImportError:\n a = None; b = 1\nelse:\n c = 1\nfinally:\n d = 1", "a b c d"),
        ("with a as b, c as (d, e):\n f = 1", "b d e f"),
        ("for a, b in c:\n d = 1\nelse:\n e = 1", "a b d e"),
        ("while (a := b):\n c = 1", "a c"),
        ("print(x := 1)", "x"),
        ("x = (y := 1)", "x y"),
    ],
)
def test_bound_names(code: str, names: str) -> None:
    assert bound_names(ast.parse(code)) == set(names.split())

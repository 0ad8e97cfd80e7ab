"""Where a file replaces a function that it defines: each way to bind its name again, and what only looks like one."""

import ast

import pytest

from unhang.shapes import rebound

METHOD = "class C:\n    def f(self): pass\n"  # lines 1 and 2
FUNCTION = "def f(): pass\n"  # line 1


@pytest.mark.parametrize(
    ("code", "name", "lines"),
    [
        # a method: by its class, in its class, or its whole class
        (METHOD + "C.f = wrap(C.f)\n", "C.f", (3,)),
        (METHOD + "if x:\n    C.f, y = wrap(C.f), 1\n", "C.f", (4,)),
        (METHOD + "setattr(C, 'f', wrap)\n", "C.f", (3,)),
        (METHOD + "def patch():\n    C.f = wrap(C.f)\n", "C.f", (4,)),
        (METHOD + "    f = wrap(f)\n    if x:\n        f: F = wrap(f)\n", "C.f", (3, 5)),
        (METHOD + "C = wrap(C)\nclass C(C): pass\n", "C.f", (3, 4)),
        (METHOD + "def use(self):\n    C.f(self)\n    self.f = D.f = C.f.g = setattr(D, 'f', C.f)\n", "C.f", ()),
        ("C = f = None\n" + METHOD.replace("    def", "    f = 1\n    def") + "f = 2\n", "C.f", ()),
        # a function: by its name, or in the module
        (FUNCTION + "f = wrap(f)\n", "f", (2,)),
        (FUNCTION + "from fast import f\nimport fast as f\nfor f in x: pass\n", "f", (2, 3, 4)),
        (FUNCTION + "with x as f: pass\nif (f := y): pass\nclass f: pass\n", "f", (2, 3, 4)),
        (FUNCTION + "import sys\nsetattr(sys.modules[__name__], 'f', x)\nsys.modules[__name__].f = x\n", "f", (3, 4)),
        (FUNCTION + "def patch():\n    global x, f\n    f = wrap(f)\nglobals()['f'] = x\n", "f", (3, 5)),
        (FUNCTION + "f()\nx.f = f\nsetattr(x, 'f', f)\ndef g():\n    f = 1\nx = [f for f in y]\nf: int\n", "f", ()),
        ("f = None\n" + FUNCTION, "f", ()),
        # of two arms, one above the definition may be the one that runs
        ("try:\n    from fast import f\nexcept ImportError:\n    def f(): pass\n", "f", (2,)),
        ("if x:\n    def f(): pass\nelse:\n    f = None\n", "f", (4,)),
        ("def g(): pass\nf = g\n", "f", ()),
    ],
)
def test_lines(code: str, name: str, lines: tuple[int, ...]) -> None:
    assert rebound.lines(ast.parse(code), code.encode(), name) == lines


@pytest.mark.parametrize(
    ("code", "name", "lines"),
    [
        ("try:\n    from fast import f\nexcept ImportError:\n    f = g\n", "f", (2, 4)),
        ("f()\nx.f = g\ndef g():\n    f = 1\n", "f", ()),
        ("from fast import C\n", "C.f", (1,)),
        ("class C(D):\n    f = g\n    f()\n", "C.f", (2,)),
        ("class C(D):\n    def g(self): return self.f == f(self)\nf = g\n", "C.f", ()),
    ],
)
def test_instead(code: str, name: str, lines: tuple[int, ...]) -> None:
    assert rebound.instead(ast.parse(code), name) == lines
    assert rebound.may_bind(code.encode(), name) or not lines


def test_a_file_that_names_a_class_or_compares_with_a_method_is_not_parsed() -> None:
    assert not rebound.may_bind(b"class C(D):\n    def g(self): return self.f == f(self)\n", "C.f")
    assert not rebound.may_bind(b"def other(): pass\n", "f")

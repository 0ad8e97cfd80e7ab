"""Where a file may put something else under a function's name: what its import runs, and what is harmless."""

import ast

import pytest

from unhang.shapes import rebound

METHOD = "class C:\n    def f(self): pass\n"  # lines 1 and 2
FUNCTION = "def f(): pass\n"  # line 1
VERSIONS = "from megatron.core.utils import is_te_min_version\n"
SINCE = "if HAVE_TE and is_te_min_version('1.9.0.dev0'):"


def again(code: str, name: str) -> tuple[str, tuple[int, ...]] | None:
    found = rebound.again(ast.parse(code), name)
    return found and (found.code, found.lines)


@pytest.mark.parametrize(
    ("code", "name", "lines"),
    [
        # a method: by its class, in its class, or its whole class
        (METHOD + "C.f = wrap\n", "C.f", (3,)),
        (METHOD + "if x:\n    C.f, y = wrap, 1\n", "C.f", (4,)),
        (METHOD + "setattr(C, 'f', wrap)\n", "C.f", (3,)),
        (METHOD + "del C.f\n", "C.f", (3,)),
        (METHOD + "[0 for C.f in [wrap]]\n", "C.f", (3,)),
        (METHOD + "def patch():\n    C.f = wrap(C.f)\n", "C.f", (4,)),
        (METHOD + "    f = wrap(f)\n    if x:\n        f: F = wrap(f)\n", "C.f", (3, 5)),
        (METHOD + "C = wrap(C)\nclass C(C): pass\n", "C.f", (3, 4)),
        (METHOD + "    def __init__(self):\n        self.f = wrap\n", "C.f", (4,)),
        # a function: by its name, or in the module
        (FUNCTION + "f = wrap(f)\n", "f", (2,)),
        (FUNCTION + "from fast import f\nimport fast as f\nfor f in x: pass\n", "f", (2, 3, 4)),
        (FUNCTION + "with x as f: pass\nif (f := y): pass\nclass f: pass\n", "f", (2, 3, 4)),
        (FUNCTION + "g = [(f := y) for y in x]\nassert (f := x)\ndel f\n", "f", (2, 3, 4)),
        (FUNCTION + "@(f := wrap)\ndef g(x=(f := 1)): pass\n", "f", (3,)),
        (FUNCTION + "try: pass\nexcept E as f: pass\nmatch x:\n    case [*f]: pass\n    case {**f}: 1\n", "f", (2, 4)),
        (FUNCTION + "f += 1\n[f] = x\n*f, y = x\n", "f", (2, 3, 4)),
        (FUNCTION + "import sys\nsetattr(sys.modules[__name__], 'f', x)\nsys.modules[__name__].f = x\n", "f", (3, 4)),
        (FUNCTION + "def patch():\n    global x, f\n    f = wrap(f)\nglobals()['f'] = x\n", "f", (3, 5)),
        (FUNCTION + "class X:\n    global f\n    f = x\n", "f", (3,)),
        # however it is spelt
        (FUNCTION + "class X:\n    global x, \\\n        f\n    f = x\n", "f", (3,)),
        (METHOD + "C.\\\nf = wrap\n(C. # c\nf) = C.\N{FULLWIDTH LATIN SMALL LETTER F} = wrap\n", "C.f", (3, 5, 6)),
        # of two arms, one above the definition may be the one that runs
        ("try:\n    from fast import f\nexcept ImportError:\n    def f(): pass\n", "f", (2,)),
        ("if x:\n    def f(): pass\nelse:\n    f = g\n", "f", (4,)),
    ],
)
def test_what_binds_the_name_again(code: str, name: str, lines: tuple[int, ...]) -> None:
    assert again(code, name) == ("rebound", lines)


@pytest.mark.parametrize(
    "code",
    [
        "vars()['f'] = x",
        "globals().update(f=x)",
        "locals().update(f=x)",
        "from acme import *",
        "import acme\nacme.patch()",
        "from acme import patch\nx = patch()",
        "for n in ['f', 'g']:\n    setattr(m, n, x)",
        "for n in ['f']: globals()[n] = x",
        "g = f\ng.__code__ = x.__code__",
        "f.__code__ = x",
        "f.__defaults__ = f.__kwdefaults__ = x",
        "K = C\nK.f = x",
        "(lambda c: setattr(c, 'f', x))(C)",
        "type.__setattr__(C, 'f', x)",
        "C.__dict__['f'] = x",
        "exec('f = x')",
        "eval('[f := 1]')",
        "__import__('acme').patch()",
        "import sys\nsys.modules[__name__] = x",
        "import sys\nsys.modules[__name__].__class__ = x",
        "import sys\nme = sys.modules[__name__]\nme.f = x",
        "import sys\nsys.modules[__name__].__dict__ |= {'f': x}",
        "import sys\nd = sys.modules\nd['m'] = x",
        "import sys\nd = sys.modules[__name__].__dict__\nd |= {'f': x}",
        "def g(): pass\nd = {'g': g.__globals__}['g']\nd |= {'f': x}",
        "class X:\n    def __init__(self):\n        self.d = print.__self__.__dict__\n        self.d |= {}\nX()",
        "import builtins\nbuiltins.__build_class__ = x",
        "import functools\nfunctools.partial(setattr, C, 'f', x)()",
        "import functools\nfunctools.reduce(x, [1])",
        "list(map(lambda n: setattr(C, n, x), 'f'))",
        "s = setattr\ns(C, 'f', x)",
        "getattr(C, 'install')()",
        "@acme\ndef g(): pass",
        "@acme.patches(C)\nclass X: pass",
        "@getattr(acme, 'patch')\ndef g(): pass",
        "with acme.patching(): pass",
        "with patching: pass",
        "import atexit, threading\natexit.register(C)\nthreading.Thread(target=x).start()",
        "import gc, ctypes, importlib\ngc.get_objects()",
        "import importlib\nimportlib.reload(x)",
        "def g(x=acme()): pass",
        "def g(x: acme()): pass",
        "class X(acme()): pass",
        "class X(metaclass=acme): pass",
        "class X(**acme): pass",
        "class X:\n    exec('global f; f = 1')",
        "class X:\n    y = acme()",
        "x = [acme() for y in z]",
        "x = f'{acme()}'",
        "def _patch():\n    globals().update(f=x)\n_patch()",
        "def _patch():\n    def inner(): acme.patch()\n    inner()\n_patch()",
        "def deco(g):\n    g.__globals__['f'] = x\n    return g\n@deco\ndef h(): pass",
        "def deco(n):\n    def inner(g):\n        g.__globals__[n] = x\n    return inner\n@deco('f')\ndef h(): pass",
        "class X:\n    def __init__(self): acme.patch()\nX()",
        "class X:\n    def __add__(self, o): acme.patch()\nX() + 1",
        "class X:\n    @property\n    def y(self): acme.patch()\nX().y",
        "class X:\n    def __set_name__(self, *a): acme.patch()\nclass Y:\n    x = X()",
        "class X:\n    def __init_subclass__(cls): acme.patch()\nclass Y(X): pass",
        "class X:\n    def __class_getitem__(cls, i): acme.patch()\nX[1]",
        "class X(type):\n    def __new__(m, n, b, d): acme.patch()\nclass Y(metaclass=X): pass",
        "class X:\n    def __enter__(self): acme.patch()\nwith X(): pass",
        "class X:\n    def __call__(self): acme.patch()\nx = X()\nx()",
        "import logging\nlogging = acme\nlogging.getLogger()",
        "def print(*a): acme.patch()\nprint()",
        "[print() for print in [acme.patch]]",
        "for print in [acme.patch]: print()",
        "def _patch():\n    global print\n    from acme import print\n_patch()\nprint()",
        "from collections import defaultdict\ndef _patch(): acme.patch()\ndefaultdict(_patch)[0]",
        # what a call is given may be called, also by way of a variable or a method
        "from collections import defaultdict\nclass X:\n    def __init__(self): acme.patch()\ndefaultdict(X)[0]",
        "from collections import defaultdict\nclass X:\n    def go(): acme.patch()\ndefaultdict(X.go)[0]",
        "from collections import defaultdict\ndef _p(): acme.patch()\nps = [_p]\ndefaultdict(ps[0])[0]",
        "class X:\n    def write(self, s): acme.patch()\nout = X()\nprint(file=out)",
        "class X(Exception):\n    def __init__(self): acme.patch()\ntry:\n    raise X\nexcept X: pass",
        "from enum import Enum\nclass X(Enum):\n    A = 1\n    def __init__(self, v): acme.patch()",
        "import enum\nclass X(enum.Enum): 1\nclass Y(X):\n    def _generate_next_value_(*a): acme.y()\n    A = 1",
        "import enum\nclass X:\n    def __init__(self, v): acme.y()\nclass Y(X, enum.Enum):\n    A = 1",
        "def __getattr__(name): acme.patch()",
        # higher-order functions, methods and texts are harmless for what they are given
        "sorted(['f = 1'], key=exec)",
        "sorted(['f = 1'], **{'key': exec})",
        "x = [2, 1]\nx.sort(key=exec)",
        "def g(v): acme.patch()\nmax([1], key=g)",
        "import re\ndef g(m): acme.patch()\nre.compile('x').sub(g, 'x')",
        "class X:\n    def __version__(): acme.patch()\nX.__version__()",
        "class X:\n    def join(self): acme.patch()\nx = X()\nx.join()",
        "import acme as math\nmath.log()",
        "import acme\nacme.f = None",
        "import acme\nacme.__version__.patch(C)",
        "import os\nos.getenv('x', C.__dict__).update(f=1)",
        "import torch\ntorch.no_grad = print",
        "if __name__ == '__main__':\n    pass\nelse:\n    acme.patch()",
        "__name__ = '__main__'\nif __name__ == '__main__':\n    acme.patch()",
        "raise acme.patch()",
        "if acme.patch(): pass",
        "x: acme.patch() = 1",
        # code of other modules' objects, without a call
        "import acme\nclass X(acme.Base): pass",
        "import acme\nclass X(acme.Generic[int]): pass",
        "class X(*bases): pass",
        "import acme\nacme.patches[C]",
        "import acme\nacme.patch @ C",
        "import acme\nC in acme.patches",
        "from acme import patches\n[*patches]",
        "from acme import patches\nfor x in patches: pass",
        "from acme import patches\nx = {1 for x in patches}",
        "from acme import patch\nf'{patch}'",
        "from acme import patch\nprint(patch)",
        "import acme\nmatch acme.x:\n    case acme.X(y=1): pass",
        "import acme\nacme.x += 1",
        "import torch\ntorch.no_grad = x",
        "import builtins\nbuiltins.print = x",
        "def g(*a): acme.patch()\nX = type('X', (), {'__set_name__': g})",
        "__builtins__ = x",
        "def g(s): acme.patch()\nclass X:\n    y = property(g)\nX().y",
        "def g(s): acme.patch()\nproperty(g).fget(1)",
    ],
)
@pytest.mark.parametrize(("defined", "name"), [(FUNCTION + "class C: pass\n", "f"), (METHOD, "C.f")])
def test_what_nobody_can_tell(code: str, defined: str, name: str) -> None:
    found = again(f"{defined}{code}\n", name)
    assert found is not None
    assert min(found[1]) > 1


@pytest.mark.parametrize(
    ("code", "name", "lines"),
    [
        ("if False:\n    def f(): pass\n", "f", (1,)),
        ("if x:\n    pass\nelse:\n    class C:\n        def f(self): pass\n", "C.f", (1,)),
        ("class C:\n    try:\n        def f(self): pass\n    finally: pass\n", "C.f", (2,)),
        (VERSIONS + f"while x:\n    {SINCE}\n        def f(): pass\n", "f", (2,)),
        (VERSIONS + f"{SINCE} pass\nelse:\n    def f(): pass\n", "f", (2,)),
        ("@acme\n" + METHOD, "C.f", (1,)),
        ("from functools import cache\n@cache\n" + METHOD, "C.f", (2,)),
        ("def acme(c): return c\n@acme\n" + METHOD, "C.f", (2,)),
        ("class C(B, metaclass=ABCMeta):\n    def f(self): pass\n", "C.f", (1,)),
        (METHOD + "    def __getattribute__(self, name): pass\n", "C.f", (3,)),
        (METHOD + "    __getattribute__ = acme\n    def __new__(cls): pass\n", "C.f", (3, 4)),
        (METHOD + "    def g(self):\n        self.__dict__['f'] = x\n        self.__class__ = D\n", "C.f", (4, 5)),
        ("from trl import DPOTrainer as D, X\ndel X.__init__, D.f\nD.__init__ = x\n" + METHOD, "C.f", (2, 3)),
        (METHOD + "    def g(self): setattr(self, 'f', x)\n", "C.f", (3,)),
        (METHOD + "    def g(self): self.__dict__.update(f=x)\n", "C.f", (3,)),
        ("def deco(g): return x\n@deco\n" + FUNCTION, "f", (2,)),
        ("def deco(g):\n    if x: return g\n@deco\n" + FUNCTION, "f", (3,)),
        ("def deco(g):\n    if x: return\n    return g\n@deco\n" + FUNCTION, "f", (4,)),
        ("def deco(g):\n    if x: g = x\n    return g\n@deco\n" + FUNCTION, "f", (4,)),
        ("def deco(g):\n    x[g := x]\n    return g\n@deco\n" + FUNCTION, "f", (4,)),
        ("def deco(g):\n    def h():\n        nonlocal g\n        g = x\n    return g\n@deco\n" + FUNCTION, "f", (6,)),
        ("def deco(g):\n    if 0: yield\n    return g\n@deco\n" + FUNCTION, "f", (4,)),
        ("async def deco(g): return g\n@deco\n" + FUNCTION, "f", (2,)),
        ("def deco(*g): return g\n@deco\n" + FUNCTION, "f", (2,)),
        ("def deco(x, /, g): return g\n@deco\n" + FUNCTION, "f", (2,)),
        ("def deco(g): return g\n@deco(1)\n" + FUNCTION, "f", (2,)),
        ("def deco(g): return g\nif x:\n    def deco(g): return x\n@deco\n" + FUNCTION, "f", (4,)),
        ("def deco(n):\n    def inner(g): return n\n    return inner\n@deco(x)\n" + FUNCTION, "f", (4,)),
        ("def deco(n):\n    def inner(g): return g\n    return n\n@deco(x)\n" + FUNCTION, "f", (4,)),
        ("def deco(n):\n    def inner(g): return g\n    inner = n\n    return inner\n@deco(x)\n" + FUNCTION, "f", (5,)),
        ("def deco(n):\n    def inner(g): return g\n    return inner\n@deco\n" + FUNCTION, "f", (4,)),
        ("def staticmethod(g): return x\nclass C:\n    @staticmethod\n    def f(): pass\n", "C.f", (3,)),
        ("from torch import no_grad\nfrom acme import *\n@no_grad()\n" + FUNCTION, "f", (3,)),
        ("from acme import *\nif x:\n    def f(): pass\n", "f", (1, 2)),
    ],
)
def test_a_definition_that_may_not_be_what_runs(code: str, name: str, lines: tuple[int, ...]) -> None:
    assert again(code, name) == ("rebound-unknown", lines)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (METHOD + "def use(self):\n    C.f(self)\n    self.f = D.f = C.f.g = setattr(D, 'f', C.f)\n", "C.f"),
        ("C = f = None\n" + METHOD.replace("    def", "    f = 1\n    def") + "f = 2\n", "C.f"),
        (FUNCTION + "x.g = f\ndef g():\n    f = 1\nx = [f for f in y]\nf: int\n", "f"),
        ("f = None\nfrom acme import *\n" + FUNCTION, "f"),
        ("def g(): pass\nf = g\n", "f"),
        (VERSIONS + f"{SINCE}\n    def f(): pass\nelse:\n    f = None\n", "f"),
        (METHOD + "class D: pass\nD.f = print\n", "C.f"),
        (METHOD + "def patch():\n    acme.install()\n", "C.f"),
        (METHOD + "    def g(self): acme.y()\nfrom typing import TypeVar\nT = TypeVar('T', bound=C)\n", "C.f"),
        # what people add to a fork
        (FUNCTION + "import os\nx = os.getenv('X', '0').lower() in ('1', 'true')\ny = ', '.join(sorted({'a'}))\n", "f"),
        (FUNCTION + "__all__ = ['f']\n__all__ += ['g']\n__all__.extend(['h'])\nd = {1: 2}\nx = d.items()\n", "f"),
        (FUNCTION + "import os, sys\nsys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))\n", "f"),
        (FUNCTION + "import logging\nl = logging.getLogger('x')\nl.addHandler(logging.StreamHandler())\n", "f"),
        (FUNCTION + "import transformers as t\nx = tuple(int(v) for v in t.__version__.split('.')[:2])\n", "f"),
        (FUNCTION + "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True\n@torch.autocast('cuda')\ndef g(): 1\n",
         "f"),
        (FUNCTION + "if __name__ == '__main__':\n    acme.main()\n", "f"),
        (FUNCTION + "from verl.trainer.ppo.core_algos import register_policy_loss as r\n@r('x')\ndef g(): pass\n", "f"),
        # what releases do
        (FUNCTION + "import logging as log\nlogger = log.getLogger()\nlogger.setLevel(1)\n", "f"),
        (FUNCTION + "import acme, torch\nx: torch.Tensor | None = acme.y\nclass X(torch.nn.Module): pass\n", "f"),
        (FUNCTION + "import torch\nx = torch.tensor([1])\n@torch.no_grad()\ndef g(): pass\n", "f"),
        (FUNCTION + "from dataclasses import dataclass, field\n@dataclass\nclass D:\n    x: int = field()\n", "f"),
        (FUNCTION + "from .utils import deprecated\n@deprecated(version='1')\ndef g(): pass\n", "f"),
        (FUNCTION + "from verl.utils.profiler import P\nclass D:\n    @P.annotate('x')\n    def g(self): pass\n", "f"),
        (FUNCTION + "try:\n    import te\nexcept ImportError:\n    raise ImportError('no')\nimport os\n", "f"),
        (FUNCTION + "import os\nos.environ['x'] = 'y'\nR = {}\nR['f'] = f\nR |= {1: 2}\n", "f"),
        (FUNCTION + "from enum import Enum\nclass X(Enum):\n    A = 1\n    def make(s): acme.y(s)\n", "f"),
        (FUNCTION + "R = {}\ndef reg(n):\n    def deco(g):\n        R[n] = g\n        return g\n    return deco\n"
         "@reg('x')\ndef g(): pass\n", "f"),
        # a decorator that gives back what it gets, as verl's registers do
        ("R = {}\ndef reg(n):\n    def deco(g):\n        R[n] = g\n        if x: return g\n        return g\n"
         "    return deco\n@reg('x')\n" + FUNCTION, "f"),
        ("def deco(g, x=1): return g\n@deco\n" + FUNCTION, "f"),
        (FUNCTION + "class X:\n    def __init__(self): self.y = 1\n    def __exit__(self): acme()\nx = X()\n", "f"),
        (FUNCTION + "class X:\n    @property\n    def y(self): pass\n    @y.setter\n    def y(self, z): pass\n", "f"),
        (FUNCTION + "class X:\n    def put(self, v): self.a.b = v\n    y = property(None, put)\n", "f"),
        (FUNCTION + "class X:\n    y: int\nnames = tuple(sorted(X.__annotations__.keys()))\n", "f"),
        (FUNCTION + "from trl.import_utils import is_peft_available\nif is_peft_available(): import peft\n", "f"),
        (FUNCTION + "from datasets import Dataset\ndef g(x: Dataset | None = None): pass\n", "f"),
        ("from trl import DPOTrainer as D\ndel D.__init__\n" + METHOD, "C.f"),
        (METHOD + "    def g(self, m):\n        m.__class__.__call__ = x\n", "C.f"),
        (METHOD + "    def g(self):\n        from acme import Hub\n        Hub.__init__ = x\n", "C.f"),
    ],
)  # fmt: skip
def test_what_is_harmless(code: str, name: str) -> None:
    assert again(code, name) is None


@pytest.mark.parametrize(
    ("code", "name", "what"),
    [
        ("try:\n    from fast import f\nexcept ImportError:\n    f = g\n", "f", "binds its name on line 2, 4"),
        ("x.f = g\ndef g():\n    f = 1\n", "f", "may bind its name on line 1"),
        ("def g():\n    f = 1\n", "f", ""),
        ("from fast import C\n", "C.f", "binds its name on line 1"),
        ("class C(D):\n    f = g\n", "C.f", "binds its name on line 2"),
        ("class C(object):\n    def g(self): return self.f == f(self)\nf = g\n", "C.f", ""),
        # a base class in the file has it: what is not abstract
        ("class B:\n    def f(self): return 1\nclass D(B): pass\nclass C(D): f: int\n", "C.f", "its class has it"),
        ("class B:\n    def f(self):\n        '1'\n        raise NotImplementedError\nclass C(B): pass\n", "C.f", ""),
        ("class C(C): pass\n", "C.f", ""),
    ],
)  # fmt: skip
def test_what_a_file_without_the_function_has_by_its_name(code: str, name: str, what: str) -> None:
    found = rebound.instead(ast.parse(code), name)
    assert found.startswith(what)
    assert bool(found) == bool(what)


def test_a_file_that_names_a_class_or_compares_with_a_method_is_not_parsed() -> None:
    assert not rebound.may_bind(b"class C(D):\n    def g(self): return self.f == f(self)\n", "C.f")
    assert not rebound.may_bind(b"def other(): pass\n", "f")

"""What an import ends up with under a function's name: whether its file may put something else there.

A file is judged by what is known to be harmless at its top level, not by a list of tricks. Statements that bind other
names, and calls that upstream's releases make there (``HARMLESS``, and ``at-import`` of each upstream), are harmless.
Code of the file that such calls run is judged alike. What other modules do is not seen.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from unhang.plugins import packs
from unhang.shapes import shape

REBOUND, UNKNOWN = "rebound", "rebound-unknown"
"""Something else is bound to the name; or there is code of which nobody can tell."""

OF_CLASSES = frozenset(
    "dataclasses.dataclass enum.unique functools.total_ordering ray.remote typing.final "
    "typing.runtime_checkable".split()
)
DECORATORS = OF_CLASSES | frozenset(
    "abc.abstractmethod classmethod contextlib.contextmanager functools.cache functools.cached_property "
    "functools.lru_cache functools.wraps property staticmethod torch._dynamo.disable torch.amp.autocast "
    "torch.amp.custom_bwd torch.amp.custom_fwd torch.autocast torch.autograd.function.once_differentiable "
    "torch.autograd.profiler.record_function torch.compile torch.compiler.disable torch.cuda.amp.custom_bwd "
    "torch.cuda.amp.custom_fwd torch.cuda.nvtx.range torch.inference_mode torch.jit.export torch.jit.ignore "
    "torch.jit.script torch.jit.unused torch.library.custom_op torch.no_grad torch.profiler.record_function "
    "triton.autotune triton.heuristics triton.jit typing.overload typing.override typing_extensions.deprecated "
    "typing_extensions.override warnings.deprecated".split()
)
MODULES = frozenset(
    "datasets flash_attn jaxtyping numpy omegaconf peft ray tensordict torch transformer_engine transformers triton "
    "typing_extensions".split()
)
"""Beside the standard library's and upstreams' own, the modules whose objects a file may operate on or derive from."""
HARMLESS = DECORATORS | frozenset(
    "abc.ABCMeta abs accelerate.logging.get_logger all any bool bytes callable collections.Counter "
    "collections.defaultdict collections.deque collections.namedtuple collections.OrderedDict "
    "contextvars.ContextVar dataclasses.field dict dict().keys dict.fromkeys enum.auto enum.EnumMeta enumerate "
    "float frozenset getattr hasattr hash importlib.import_module importlib.metadata.version "
    "importlib.util.find_spec inspect.signature int isinstance issubclass itertools.count len list "
    "logging.basicConfig logging.debug logging.error logging.FileHandler logging.Formatter logging.getLogger "
    "logging.getLogger().addHandler logging.getLogger().debug logging.getLogger().error "
    "logging.getLogger().getChild logging.getLogger().info logging.getLogger().setLevel "
    "logging.getLogger().warning logging.getLogger().warning_once logging.info logging.LoggerAdapter "
    "logging.NullHandler logging.StreamHandler logging.warning max min object operator.attrgetter os.cpu_count "
    "os.environ.get os.environ.pop os.environ.setdefault os.getcwd os.getenv os.getpid packaging.version.parse "
    "packaging.version.Version pathlib.Path pkg_resources.extern.packaging.version.Version "
    "pkg_resources.packaging.version.Version platform.machine platform.system print range re.compile repr "
    "reversed round set sorted str sum super super().__init__ super().__init_subclass__ super().__new__ "
    "sys.path.append sys.path.extend sys.path.insert textwrap.dedent threading.Condition threading.Event "
    "threading.local threading.Lock threading.RLock threading.Semaphore time.monotonic time.perf_counter "
    "time.time torch.arange torch.cuda.current_device torch.cuda.device_count torch.cuda.get_device_capability "
    "torch.cuda.get_device_name torch.cuda.is_available torch.device torch.distributed.get_rank "
    "torch.distributed.get_world_size torch.distributed.is_available torch.distributed.is_initialized "
    "torch.empty torch.finfo torch.iinfo torch.manual_seed torch.npu.is_available torch.ones "
    "torch.set_default_dtype torch.set_float32_matmul_precision torch.tensor torch.zeros "
    "transformers.is_bitsandbytes_available transformers.is_trackio_available transformers.is_wandb_available "
    "transformers.utils.is_peft_available triton.Config tuple type typing.NewType typing.ParamSpec "
    "typing.TypeVar unittest.mock.MagicMock uuid.uuid4 warnings.filterwarnings warnings.simplefilter "
    "warnings.warn zip".split()
)
"""What a file may call when it is imported: it changes nothing of the file's own, whatever it is given.

What of the file's own it is given may be called, so it is judged too.
"""
_HARMLESS_MODULES = ("math.", "os.path.", "pathlib.Path", "re.compile()")
_TEXT = "str()"
_TEXT_METHODS = frozenset(f"{_TEXT}.{it}" for it in dir(str) if not it.startswith("_"))
_GIVE_TEXT = frozenset({*_TEXT_METHODS, "os.environ.get", "os.getenv"})
"""What gives a text, unless its default is something else."""
_RUNS_NOTHING = frozenset({"property", "super", "typing.NewType", "typing.TypeVar"})
"""What calls nothing of the classes and functions that it is given."""

_AT_DEFINITION = frozenset({"__init_subclass__", "__class_getitem__", "__set_name__"})
_OF_ENUM = re.compile(r"_\w+_")
"""An enumeration makes its members while it is defined, by ``__init__``, ``_generate_next_value_`` and the like."""
_ON_USE = frozenset({"__call__", "__enter__", "__exit__", "__aenter__", "__aexit__"})
_DUNDER = re.compile(r"__\w+__")
_Origin = str | ast.stmt
"""Where what a name is bound to comes from: dotted, such as ``logging.getLogger``; or its definition in the file."""
_Scope = Mapping[str, Sequence["ast.AST | str"]]
_STRANGE = "?"
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
_COLLECTIONS = [f"collections.{it}" for it in ("Counter", "OrderedDict", "defaultdict", "deque")]
_MADE = {f"{it}()" for it in (*_COLLECTIONS, "dict", "list", "set")}


class Again(NamedTuple):
    """Why a function's shape does not tell what runs by its name."""

    code: str
    """``rebound`` or ``rebound-unknown``."""
    lines: tuple[int, ...]


def again(tree: ast.Module, qualified: str) -> Again | None:
    """Return where a file binds, or may bind, the name of a function that it defines once; None if it does not."""
    if bound := lines(tree, qualified):
        return Again(REBOUND, bound)
    path = qualified.split(".")
    unknown = {line for line, reached in _reached(tree) if reached is None or reached in path}
    unknown.update(_stars(tree.body, path), _of_class(tree.body, path), _in_blocks(tree.body, path))
    return Again(UNKNOWN, tuple(sorted(unknown))) if unknown else None


def lines(tree: ast.Module, qualified: str) -> tuple[int, ...]:
    """Return the lines that bind the name again, as far as they say so."""
    bound = {*_after(tree.body, qualified.split(".")), *_from_anywhere(tree, qualified)}
    return tuple(sorted(bound))


def may_bind(data: bytes, qualified: str) -> bool:
    """Return whether a file may bind the name of a function that it does not define: cheaper than parsing."""
    owner, _, name = qualified.rpartition(".")
    has_owner = owner and re.search(rf"\bclass\s+{owner}\b".encode(), data)
    word = rf"\b{name}\s*=[^=]" if has_owner else rf"\b{owner or name}\b"
    return re.search(word.encode(), data) is not None


def instead(tree: ast.Module, qualified: str) -> str:
    """Return what a file without this function has by its name all the same, such as an import; empty if nothing."""
    lines = sorted(set(_bindings(tree.body, qualified.split("."))))
    if lines:
        return f"binds its name on line {', '.join(map(str, lines))}: what runs by that name is elsewhere"
    if found := inherited(tree, qualified):
        return f"its class has it from {found}"
    lines = sorted({line for line, reached in _reached(tree) if reached is None or reached in qualified.split(".")})
    return f"may bind its name on line {', '.join(map(str, lines))}" if lines else ""


def elsewhere(tree: ast.Module, name: str, file: str) -> tuple[int, ...]:
    """Return the lines that bind a name of another file otherwise than by an import from there or a package above."""
    module = file.removesuffix(".py").replace("/", ".")
    found = []
    for node in shape.statements(tree.body):
        if name in _bound(node):
            aliases = node.names if isinstance(node, ast.ImportFrom) else []
            is_own = any(it.name == name and it.asname in (None, name) for it in aliases)
            if not is_own or not _is_above(node, module):
                found.append(node.lineno)
    return tuple(found)


def _is_above(node: ast.stmt, module: str) -> bool:
    """Return whether an import is from this module, or from a package above it; a relative one is taken for that."""
    return isinstance(node, ast.ImportFrom) and (node.level > 0 or f"{module}.".startswith(f"{node.module}."))


def inherited(tree: ast.Module, qualified: str) -> str:
    """Return the base class, in the file, that a class has a method from, and the line; empty if there is none."""
    owner, _, name = qualified.rpartition(".")
    left = [owner]
    for one in left:  # it grows
        found = [it for it in shape.find(tree, f"{one}.{name}") if owner and not _is_abstract(it)]
        if found:
            return f"{one}, line {found[0].lineno}"
        classes = [it for it in shape.statements(tree.body) if isinstance(it, ast.ClassDef) and it.name == one]
        bases = (ast.unparse(base) for it in classes for base in it.bases)
        left += [base for base in bases if base not in left]
    return ""


def imported_bases(tree: ast.Module, owner: str) -> list[str]:
    """Return where a class of a file has its bases from other files: dotted, each with its class."""
    scope, found, left = _names(tree.body), [], [owner]
    for name in left:  # it grows
        for bound in scope.get(name, ()):
            if isinstance(bound, ast.ClassDef):
                left += [base.id for base in bound.bases if isinstance(base, ast.Name) and base.id not in left]
            elif isinstance(bound, str) and name != owner:
                found.append(bound)
    return found


def _is_abstract(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a method does nothing, and is there for subclasses to define."""
    rest = node.body[1:] if shape.has_docstring(node) else node.body
    return all(isinstance(it, (ast.Pass, ast.Raise)) or _is_ellipsis(it) for it in rest)


def _is_ellipsis(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _bindings(body: Sequence[ast.stmt], path: Sequence[str]) -> Iterator[int]:
    name, *rest = path
    for node in shape.statements(body):
        if rest and isinstance(node, ast.ClassDef):
            if node.name == name:
                yield from _bindings(node.body, rest)
        elif name in _bound(node):
            yield node.lineno


def _after(body: Sequence[ast.stmt], path: Sequence[str]) -> Iterator[int]:
    """Yield the lines that bind the first name of the path again, or whose decorator changes its class.

    None in another arm of the definition's own ``if`` is no other function: there is none then.
    """
    name, *rest = path
    block = list(shape.statements(body))
    definition = next((node for node in block if _defines(node, path)), None)
    if definition is None:
        return
    is_after = definition not in body  # in an `if` or a `try`, an arm above it counts too
    absent = {id(node) for one in body if isinstance(one, ast.If) for node in _without(one, definition)}
    for node in block:
        if node is definition:
            is_after = True
        elif is_after and name in _bound(node) and id(node) not in absent:
            yield node.lineno
    if isinstance(definition, ast.ClassDef):
        yield from _after(definition.body, rest)


def _without(node: ast.If, definition: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statements of the arm without the definition that set a name to None."""
    for arm, other in (node.body, node.orelse), (node.orelse, node.body):
        if any(definition is one for one in shape.statements(arm)):
            for one in other:
                if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant) and one.value.value is None:
                    yield one


def _defines(node: ast.stmt, path: Sequence[str]) -> bool:
    """Return whether this statement is the definition at the start of the path, which has the rest of it inside."""
    name, *rest = path
    if isinstance(node, ast.ClassDef) and rest:
        return node.name == name and any(_defines(inner, rest) for inner in shape.statements(node.body))
    return isinstance(node, _FUNCTIONS) and not rest and node.name == name


def _from_anywhere(tree: ast.Module, qualified: str) -> Iterator[int]:
    """Yield the lines that bind it by the name of its class or module, also inside functions that may never run."""
    owner, _, name = qualified.rpartition(".")
    outer = qualified.partition(".")[0]
    own = {id(node) for one in tree.body for node in _class_of(one, owner)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Global) and outer in node.names:
            yield node.lineno
        elif isinstance(node, ast.Attribute) and _is_stored(node):
            if node.attr == name and (_is_owner(node.value, owner) or id(node) in own):
                yield node.lineno
        elif isinstance(node, ast.Subscript) and _is_stored(node):
            if _is(node.slice, outer) and ast.unparse(node.value) == "globals()":
                yield node.lineno
        elif isinstance(node, ast.Call) and len(node.args) > 2 and ast.unparse(node.func) == "setattr":
            if _is(node.args[1], name) and _is_owner(node.args[0], owner):
                yield node.lineno


def _class_of(node: ast.stmt, owner: str) -> Iterator[ast.AST]:
    """Yield what is in the class of a method: ``self.method = ...`` there hides it."""
    if owner and isinstance(node, ast.ClassDef) and node.name == owner:
        yield from ast.walk(node)


def _is_owner(node: ast.expr, owner: str) -> bool:
    """Return whether an expression is the class of a method, or the module of a function."""
    return ast.unparse(node) == (owner or "sys.modules[__name__]")


def _is_stored(node: ast.Attribute | ast.Name | ast.Subscript) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == name


def _stars(body: Sequence[ast.stmt], path: Sequence[str]) -> Iterator[int]:
    """Yield the lines of ``import *`` that may run after the definition."""
    definition = next((one for one in shape.statements(body) if _defines(one, path)), None)
    first = definition.lineno if definition in body and definition is not None else 0
    for node in shape.statements(body):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and node.lineno > first:
            yield node.lineno


def _of_class(body: Sequence[ast.stmt], path: Sequence[str]) -> Iterator[int]:
    """Yield the lines where a class on the path is made otherwise than by its body and its bases."""
    for node in shape.statements(body):
        if isinstance(node, ast.ClassDef) and _defines(node, path):
            yield from (it.value.lineno for it in node.keywords)
            for one in shape.statements(node.body):
                if _bound(one) & {"__getattribute__", "__new__"}:
                    yield one.lineno
            if len(path) == 2:
                yield from _by_text(node, path[1])
            yield from _of_class(node.body, path[1:])


def _by_text(owner: ast.ClassDef, name: str) -> Iterator[int]:
    """Yield the lines of a class that give its method's name to a call, or store to `__class__` and the like.

    A store to `__call__` or `__init__` is none of these: no other method is looked up by it.
    """
    for node in ast.walk(owner):
        stored = node.attr if isinstance(node, ast.Attribute) and _is_stored(node) else ""
        is_special = _DUNDER.fullmatch(stored) and stored not in ("__call__", "__init__")
        if isinstance(node, ast.expr) and (is_special or _is(node, name)):
            yield node.lineno
        elif isinstance(node, ast.keyword) and node.arg == name:  # of `self.__dict__.update`
            yield node.value.lineno


def _in_blocks(body: Sequence[ast.stmt], path: Sequence[str]) -> Iterator[int]:
    """Yield the lines of the blocks around a definition, which may not run, unless upstream has such a block there."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            if _defines(node, path):
                yield from _in_blocks(node.body, path[1:])
        elif not isinstance(node, _FUNCTIONS):
            arms = [arm for arm in _arms(node) if any(_defines(it, path) for it in shape.statements(arm))]
            for arm in arms:
                if not isinstance(node, ast.If) or arm is not node.body or shape.digest(node.test) not in _conditions():
                    yield node.lineno
                yield from _in_blocks(arm, path)


@lru_cache(4)
def _reached(tree: ast.Module) -> tuple[tuple[int, str | None], ...]:
    """Return the lines of what an import of a file runs that may bind a name, each with that name; None for any."""
    return tuple(_Import(tree).found)


class _Import:
    """Follows what an import of a module runs, and finds each line that may bind what it should not."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: set[tuple[int, str | None]] = set()
        self._ran: set[tuple[int, int]] = set()
        self._scope = _names(tree.body)
        stars = (it.lineno for it in tree.body if isinstance(it, ast.ImportFrom) and _is_foreign_star(it))
        self._strange_after = min(stars, default=sys.maxsize)
        self._block([it for it in tree.body if not self._is_script(it)], self._scope)
        for one in shape.statements(tree.body):
            if isinstance(one, _FUNCTIONS) and one.name == "__getattr__":  # an import from a module asks it for a path
                self._function(one, self._scope, 1)

    def _block(self, body: Sequence[ast.stmt], scope: _Scope, depth: int = 1) -> None:
        for node in shape.statements(body):
            self._statement(node, scope)
            if isinstance(node, ast.ClassDef):
                inner = ChainMap(dict(_names(node.body)), scope)  # type: ignore[arg-type]
                self._block(node.body, inner)
                for one in node.body:
                    if isinstance(one, _FUNCTIONS) and one.name in _AT_DEFINITION:
                        self._function(one, scope, 1)
                if self._is_enum(node, scope):
                    self._members(node, scope)
            elif isinstance(node, _FUNCTIONS) and depth > 1:  # what a call returns is called
                self._function(node, scope, depth - 1)

    def _is_script(self, node: ast.stmt) -> bool:
        """Return whether this runs in a script alone, and in no import."""
        is_script = isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        return is_script and not getattr(node, "orelse", None) and "__name__" not in self._scope

    def _is_enum(self, node: ast.ClassDef, scope: _Scope) -> bool:
        """Return whether a class is an enumeration, also by way of another class of the file."""
        for origin in (it for base in node.bases for it in self._origins(base, scope)):
            if isinstance(origin, ast.ClassDef):
                if origin is not node and self._is_enum(origin, scope):
                    return True
            elif isinstance(origin, str) and origin.startswith("enum."):
                return True
        return False

    def _members(self, node: ast.ClassDef, scope: _Scope) -> None:
        """Judge what makes the members of an enumeration, which its bases may have."""
        for one in node.body:
            if isinstance(one, _FUNCTIONS) and _OF_ENUM.fullmatch(one.name):
                self._function(one, scope, 1)
        for origin in (it for base in node.bases for it in self._origins(base, scope)):
            if isinstance(origin, ast.ClassDef) and origin is not node:
                self._members(origin, scope)

    def _statement(self, node: ast.stmt, scope: _Scope) -> None:
        """Judge what one statement itself does, without those nested in it."""
        for decorator in getattr(node, "decorator_list", ()):
            self._decorator(decorator, scope, node)
        for item in getattr(node, "items", ()):
            made = item.context_expr
            if not isinstance(made, ast.Call) or not all(isinstance(it, str) for it in self._origins(made.func, scope)):
                self.found.add((node.lineno, None))
        for keyword in getattr(node, "keywords", ()):
            if keyword.arg in ("metaclass", None):
                self._call(keyword.value, scope, keyword.value, HARMLESS, 1)
        for base in getattr(node, "bases", ()):
            self._base(base, scope)
        own = list(_own(node))
        if inner := [name.id for name in _inner(own)]:  # the variables of a comprehension hide other names
            scope = ChainMap({name: [_STRANGE] for name in inner}, scope)  # type: ignore[arg-type]
        for one in own:
            if isinstance(one, ast.Call):
                self._call(one.func, scope, one, HARMLESS, 1)
                if not set(map(str, self._origins(one.func, scope))) <= _RUNS_NOTHING:
                    for given in (*one.args, *(it.value for it in one.keywords)):
                        self._given(given, scope)
                for key in (it.value for it in one.keywords if it.arg == "key"):  # what is sorted is given to it
                    if not isinstance(key, (ast.Lambda, ast.Constant, *_DISPLAYS)):
                        self._call(key, scope, key, HARMLESS, 1)
            elif isinstance(one, ast.Name) and one.id == "__builtins__":
                self.found.add((one.lineno, None))
            elif isinstance(one, ast.Global):  # of a function that runs
                for name in one.names:
                    self._scope.setdefault(name, []).append(_STRANGE)
            elif isinstance(one, (ast.Attribute, ast.Subscript)) and _is_stored(one):
                self._store(one, scope, isinstance(getattr(node, "value", None), ast.Constant))
            elif isinstance(one, ast.AugAssign) and isinstance(one.op, ast.BitOr):  # it may be a module's dictionary
                if not self._is_own_container(one.target, scope):
                    self.found.add((one.lineno, None))
            elif isinstance(one, ast.Raise) and one.exc is not None:
                self._given(one.exc, scope)
            if any(self._is_foreign(it, scope) for it in _operands(one)):
                self.found.add((node.lineno, None))

    def _decorator(self, node: ast.expr, scope: _Scope, of: ast.stmt) -> None:
        called, depth = (node.func, 2) if isinstance(node, ast.Call) else (node, 1)
        is_class = isinstance(of, ast.ClassDef)
        known = OF_CLASSES if is_class else DECORATORS
        if not all(
            _is_listed(it, known) if isinstance(it, str) else not is_class and _gives_back(it, depth)
            for it in self._origins(called, scope)
        ):
            self.found.add((node.lineno, of.name))  # type: ignore[attr-defined]  # one of the file's own may change it
        self._call(called, scope, node, DECORATORS, depth)

    def _call(self, called: ast.expr, scope: _Scope, at: ast.expr, listed: frozenset[str], depth: int) -> None:
        """Note a call of what is not known to be harmless; look into what the file itself defines."""
        if isinstance(called, ast.Attribute) and not _DUNDER.fullmatch(called.attr):
            if isinstance(called.value, ast.Name) and self._is_own_container(called.value, scope):
                return
        for origin in self._origins(called, scope):
            if isinstance(origin, _FUNCTIONS):
                self._function(origin, self._scope if not isinstance(scope, ChainMap) else scope, depth)
            elif isinstance(origin, ast.ClassDef):
                self._instance(origin, scope)
            elif not isinstance(origin, str) or not _is_listed(origin, listed):
                self.found.add((at.lineno, None))

    def _base(self, node: ast.expr, scope: _Scope) -> None:
        """Note a base class of other modules than a file may operate on: it may see each subclass."""
        named = node.value if isinstance(node, ast.Subscript) else node
        is_strange = any(isinstance(it, str) and it.startswith(_STRANGE) for it in self._origins(named, scope))
        if is_strange or self._is_foreign(named, scope):
            self.found.add((node.lineno, None))

    def _given(self, node: ast.expr, scope: _Scope, seen: frozenset[str] = frozenset()) -> None:
        """Judge the functions and classes that a call is given, also in a variable: it may call them."""
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} - seen
        for name in names:
            if name not in scope and callable(getattr(builtins, name, None)) and not _is_listed(name, HARMLESS):
                self.found.add((node.lineno, None))
        for bound in (it for name in names for it in scope.get(name, ())):
            if isinstance(bound, _FUNCTIONS):
                self._function(bound, scope, 1)
            elif isinstance(bound, ast.ClassDef):
                for one in shape.statements(bound.body):
                    if isinstance(one, _FUNCTIONS):
                        self._function(one, scope, 1)
            elif isinstance(bound, ast.expr):
                self._given(bound, scope, seen | names)

    def _is_foreign(self, node: ast.AST, scope: _Scope) -> bool:
        """Return whether an expression is an object of a module that upstreams' releases do not operate on."""
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        known = (_STRANGE, *_of_upstreams()[0], *(f"{it}." for it in (*sys.stdlib_module_names, *MODULES)))
        dotted = [it for it in self._origins(node, scope) if isinstance(it, str) and "." in it]
        return not all(it.startswith(known) for it in dotted)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope, depth: int) -> None:
        if (id(node), depth) in self._ran:
            return
        self._ran.add((id(node), depth))
        arguments = {it.arg: [_STRANGE] for it in ast.walk(node.args) if isinstance(it, ast.arg)}
        self._block(node.body, ChainMap(dict(_names(node.body)), arguments, scope), depth=depth)  # type: ignore[arg-type]

    def _instance(self, node: ast.ClassDef, scope: _Scope) -> None:
        """Judge what may run, without a call of its name, of a class whose instance or subclass is made."""
        for one in shape.statements(node.body):
            if isinstance(one, _FUNCTIONS) and one.name not in _ON_USE:
                if _DUNDER.fullmatch(one.name) or one.decorator_list:
                    self._function(one, scope, 1)
            elif isinstance(one, ast.Assign):  # such as `x = property(get_x)`
                self._given(one.value, ChainMap(dict(_names(node.body)), scope))  # type: ignore[arg-type]
        for base in node.bases:
            for origin in self._origins(base, scope):
                if isinstance(origin, ast.ClassDef) and origin is not node:
                    self._instance(origin, scope)

    def _store(self, node: ast.Attribute | ast.Subscript, scope: _Scope, is_constant: bool) -> None:
        """Note a store of an attribute, or of an item of what is no dictionary or list of the file's own.

        A constant, such as a flag of torch, is nothing that could run.
        """
        reached = None
        if isinstance(node, ast.Attribute):
            owners = scope.get(node.value.id, [_STRANGE]) if isinstance(node.value, ast.Name) else [_STRANGE]
            if isinstance(node.ctx, ast.Del) and {*map(str, self._origins(node, scope))} <= _of_upstreams()[1]:
                return
            if not _DUNDER.fullmatch(node.attr):
                if all(isinstance(it, (ast.ClassDef, *_FUNCTIONS)) for it in owners):  # `again` looks for its own class
                    return
                origins = {str(it) for it in self._origins(node, scope)} - {_STRANGE, f"{_STRANGE}.{node.attr}"}
                if origins and origins <= _of_upstreams()[1]:
                    return
                reached = None if origins and not is_constant else node.attr
        elif self._is_own_container(node.value, scope):
            return
        self.found.add((node.lineno, reached))

    def _is_own_container(self, node: ast.expr, scope: _Scope) -> bool:
        """Return whether this is a dictionary or list that the file has made, or the environment's variables."""
        if not isinstance(node, ast.Name):
            return self._origins(node, scope) == ["os.environ"]
        return all(
            isinstance(it, _DISPLAYS) or (isinstance(it, ast.expr) and set(self._origins(it, scope)) <= _MADE)
            for it in scope.get(node.id, [_STRANGE])
        )

    def _origins(self, node: ast.expr, scope: _Scope, seen: frozenset[str] = frozenset()) -> list[_Origin]:
        """Return where what an expression gives may come from; ``?`` where nobody can tell."""
        found: list[_Origin]
        if isinstance(node, ast.Call):
            found = self._origins(node.func, scope, seen)
            if all(isinstance(it, ast.Constant) for it in node.args[1:]) and not node.keywords:
                found = ["str" if it in _GIVE_TEXT else it for it in found]
            return [f"{it}()" if isinstance(it, str) else _STRANGE for it in found]
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            return [_TEXT]
        if isinstance(node, ast.Attribute):
            if node.attr == "__annotations__":
                return ["dict()"]
            own = "property" if node.attr in ("setter", "getter", "deleter") else _STRANGE
            found = [
                f"{it}.{node.attr}" if isinstance(it, str) else own for it in self._origins(node.value, scope, seen)
            ]
            is_text = node.attr == "__version__" and not any(str(it).startswith(_STRANGE) for it in found)
            return [_TEXT] if is_text else found
        if not isinstance(node, ast.Name) or node.id in seen:
            return [_STRANGE]
        if node.id not in scope:
            return [node.id if hasattr(builtins, node.id) and "*" not in self._scope else _STRANGE]
        found = [_STRANGE] if node.lineno > self._strange_after else []
        for bound in scope[node.id]:
            if isinstance(bound, (str, ast.stmt)):
                found.append(bound)
            elif isinstance(bound, ast.expr) and not isinstance(bound, ast.Constant):  # a call of one fails
                found += self._origins(bound, scope, seen | {node.id})
        return found


def _gives_back(node: ast.stmt, depth: int) -> bool:
    """Return whether a decorator, or at depth 2 the only function in it, which it returns, gives back what it gets."""
    if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.args.posonlyargs:
        return False
    own = list(shape.statements(node.body))
    inner = [it for it in own if isinstance(it, _FUNCTIONS)] if depth > 1 else []
    names = [it.name for it in inner] if depth > 1 else [it.arg for it in node.args.args[:1]]
    ends = {ast.unparse(it.value) if it.value else "" for it in own if isinstance(it, ast.Return)}
    is_last = isinstance(node.body[-1], ast.Return)
    if not is_last or len(names) != 1 or ends != {*names}:
        return False
    for one in ast.walk(node):
        if isinstance(one, (ast.Yield, ast.YieldFrom)) or set(names) & set(getattr(one, "names", ())):
            return False  # a generator, or a name that a function inside binds
        if isinstance(one, ast.stmt) and names[0] in _bound(one) and one not in inner and one is not node:
            return False
    return depth == 1 or _gives_back(inner[0], depth - 1)


def _is_foreign_star(node: ast.ImportFrom) -> bool:
    return node.names[0].name == "*" and not f"{'.' * node.level}{node.module}".startswith(_of_upstreams()[0])


def _operands(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the operands of what may run code of their classes: all but names, attributes and literals."""
    if isinstance(node, (ast.BinOp, ast.Compare, ast.UnaryOp, ast.Starred, ast.FormattedValue, ast.Match)):
        yield from ast.iter_child_nodes(node)
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield node.iter
    elif isinstance(node, ast.Subscript):
        yield node.value
    elif isinstance(node, ast.AugAssign):
        yield from (node.target, node.value)
    elif isinstance(node, ast.Call):
        yield from (*node.args, *(it.value for it in node.keywords))


def _is_listed(dotted: str, listed: frozenset[str]) -> bool:
    """Return whether this is known to be harmless: by its whole name, or by its name in an upstream's package."""
    if dotted in listed or dotted in _TEXT_METHODS or dotted.startswith(_HARMLESS_MODULES) or _is_exception(dotted):
        return True
    tops, names = _of_upstreams()
    return dotted in names or (dotted.startswith(tops) and dotted.rpartition(".")[2] in names)


def _is_exception(name: str) -> bool:
    return isinstance(found := getattr(builtins, name, None), type) and issubclass(found, BaseException)


@packs.remembered
def _of_upstreams() -> tuple[tuple[str, ...], frozenset[str]]:
    """Return how names in the upstreams' own packages begin, and which of them they call when they are imported."""
    found = packs.upstreams().values()
    tops = (".", *(f"{one.module.partition('.')[0]}." for one in found))
    return tops, frozenset(name for one in found for name in one.about.get("at-import", {}).get("calls", ()))


@packs.remembered
def _conditions() -> frozenset[str]:
    """Return the digests of the conditions under which upstreams define a function that a fix rewrites."""
    return frozenset(
        it for one in packs.upstreams().values() for it in one.about.get("at-import", {}).get("conditions", ())
    )


def _arms(node: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        yield getattr(node, field, [])
    for arm in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
        yield arm.body


def _names(body: Sequence[ast.stmt]) -> dict[str, list[ast.AST | str]]:
    """Return what a block binds to each of its names."""
    found: dict[str, list[ast.AST | str]] = {}
    for node in shape.statements(body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                found.setdefault(name, []).append(alias.name if alias.asname else name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                dotted = f"{'.' * node.level}{node.module or ''}.{alias.name}"
                found.setdefault(alias.asname or alias.name, []).append(dotted)
        else:
            for name in _bound(node):
                found.setdefault(name, []).append(_bound_to(node, name))
    return found


def _bound_to(node: ast.stmt, name: str) -> ast.AST | str:
    """Return the definition or the value that a statement binds to a name; ``?`` for any other way."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return node
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        return node.value
    if isinstance(node, ast.Assign) and all(isinstance(it, ast.Name) for it in node.targets):
        return node.value
    if isinstance(node, ast.AugAssign) and isinstance(node.value, _DISPLAYS):
        return node.value
    return _STRANGE


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement itself binds or deletes, also in its expressions."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return shape.names(node)
    own = list(_own(node))
    inner = set(map(id, _inner(own)))
    if isinstance(node, ast.AnnAssign) and node.value is None:
        inner.add(id(node.target))
    found = {one.id for one in own if isinstance(one, ast.Name) and _is_stored(one) and id(one) not in inner}
    for one in own:
        for field in ("name", "rest"):  # of a definition, `except ... as`, and patterns
            if isinstance(value := getattr(one, field, None), str) and not isinstance(one, ast.alias):
                found.add(value)
    return found


def _inner(own: Sequence[ast.AST]) -> Iterator[ast.Name]:
    """Yield the variables of the comprehensions among these nodes."""
    for one in own:
        for part in one.generators if isinstance(one, _COMPREHENSIONS) else ():
            yield from (name for name in ast.walk(part.target) if isinstance(name, ast.Name))


def _own(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes that run with a statement: not the statements nested in it."""
    stack: list[ast.AST] = [node]
    while stack:
        one = stack.pop()
        yield one
        stack += [child for child in ast.iter_child_nodes(one) if not isinstance(child, ast.stmt)]

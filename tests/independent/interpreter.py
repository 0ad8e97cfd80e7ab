"""Interprets one function of a file, on stand-ins. Upstream's code is walked, never executed.

A name counts only if the file binds it. What it imports and nobody stands in for is ``Unknown``; the judge runs a
function once where everything unknown is true, and once where it is false.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

STEPS = 300_000
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
# Their answer about an unknown value is unknown; the others iterate over it.
_OF_VALUES: set[Any] = {len, int, float, str, bool, repr, abs, min, max, sum, range, type, round}
_OTHERS: set[Any] = {list, tuple, dict, set, any, all, sorted, zip, enumerate, reversed, map, next, iter, callable}
_NEVER = object()
_CONTINUE = object()


class BeyondError(BaseException):
    """The code needs what this interpreter or a stand-in does not know. Interpreted code cannot catch it."""


class Model:
    """A stand-in. Interpreted code sees its public attributes."""

    def attribute(self, name: str) -> Any:
        found = _NEVER if name.startswith("_") else getattr(self, name, _NEVER)
        if found is _NEVER:
            raise BeyondError(f"{type(self).__name__} has no {name}")
        return found

    def entered(self) -> Any:
        """Return what ``with`` binds."""
        return self


class Names(Model):
    """A stand-in with these attributes. Another one is unknown, or an AttributeError if ``closed``."""

    def __init__(self, attributes: Mapping[str, Any], truth: bool = False, closed: bool = False) -> None:
        self.attributes, self.truth, self.closed = dict(attributes), truth, closed
        self.read: set[str] = set()

    def attribute(self, name: str) -> Any:
        self.read.add(name)
        if name not in self.attributes and self.closed:
            raise AttributeError(name)
        return self.attributes.get(name, Unknown(name, self.truth))


class Unknown(Model):
    """A value that nobody stands in for; all made from it are unknown too."""

    def __init__(self, name: str, truth: bool) -> None:
        self.name, self.truth = name, truth

    def attribute(self, name: str) -> Unknown:
        return Unknown(f"{self.name}.{name}", self.truth)

    def __call__(self, *_: object, **__: object) -> Unknown:
        return Unknown(f"{self.name}()", self.truth)

    def __getitem__(self, _: object) -> Unknown:
        return self

    def __setitem__(self, _: object, __: object) -> None:
        pass

    def __delitem__(self, _: object) -> None:
        pass

    def __bool__(self) -> bool:
        return self.truth

    def __iter__(self) -> Iterator[Unknown]:
        return iter([self] if self.truth else [])

    def __contains__(self, _: object) -> bool:
        return self.truth


class Class:
    """A class of the file. Its instances have its functions; its bases are unknown."""

    def __init__(self, node: ast.ClassDef, module: Scope) -> None:
        self.name, self.members = node.name, {}
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                self.members[item.name] = item, {ast.unparse(it) for it in item.decorator_list}
        self._module = module

    def function(self, name: str) -> Function:
        return Function(self.members[name][0], self._module)

    def __call__(self, *args: object, **kwargs: object) -> Instance:
        made = Instance(self, {}, closed=True)
        if "__init__" in self.members:
            self.function("__init__")(made, *args, **kwargs)
        return made


class Instance(Names):
    """An object of a class of the file."""

    def __init__(
        self, made_by: Class, attributes: Mapping[str, Any], truth: bool = False, closed: bool = False
    ) -> None:
        super().__init__(attributes, truth, closed)
        self.made_by = made_by

    def attribute(self, name: str) -> Any:
        if name in self.attributes or name not in self.made_by.members:
            return super().attribute(name)
        function, decorators = self.made_by.function(name), self.made_by.members[name][1]
        if "property" in decorators:
            return function(self)
        return function if "staticmethod" in decorators else partial(function, self)


class Scope:
    """The names of a function call, or of the module if it has no parent."""

    def __init__(self, walk: Walk, parent: Scope | None = None, local: frozenset[str] = frozenset()) -> None:
        self.walk, self.parent, self.local = walk, parent, local
        self.values: dict[str, Any] = {}
        self.elsewhere: dict[str, Scope] = {}
        """The scopes of its global names."""
        self.yielded: list[Any] = []

    def get(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.elsewhere:
                scope = scope.elsewhere[name]
            if name in scope.values:
                return scope.values[name]
            if name in scope.local:
                raise UnboundLocalError(name)
            scope = scope.parent
        return self.walk.global_value(name)

    def set(self, name: str, value: object) -> None:
        self.elsewhere.get(name, self).values[name] = value


class Function:
    """A function of the file."""

    def __init__(self, node: ast.FunctionDef, scope: Scope) -> None:
        self.node, self.scope = node, scope
        given = node.args
        self.defaults = [scope.walk.value(item, scope) for item in given.defaults]
        self.kw_defaults = [_NEVER if item is None else scope.walk.value(item, scope) for item in given.kw_defaults]

    @property
    def parameters(self) -> list[str]:
        return [item.arg for item in [*self.node.args.posonlyargs, *self.node.args.args, *self.node.args.kwonlyargs]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        walk = self.scope.walk
        local, generates = _locals(self.node)
        scope = Scope(walk, self.scope, local)
        scope.values = self._bound(args, kwargs)
        done = walk.block(self.node.body, scope)
        if generates:
            return iter(scope.yielded)
        return done[0] if isinstance(done, list) else None

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        given, left = self.node.args, dict(kwargs)
        names = [item.arg for item in [*given.posonlyargs, *given.args]]
        values = dict(zip(names[len(names) - len(self.defaults) :], self.defaults))
        values |= {item.arg: value for item, value in zip(given.kwonlyargs, self.kw_defaults) if value is not _NEVER}
        values |= dict(zip(names, args))
        if given.vararg:
            values[given.vararg.arg] = tuple(args[len(names) :])
        elif len(args) > len(names):
            raise TypeError("too many arguments")
        for name in [*names[len(args) :], *(item.arg for item in given.kwonlyargs)]:
            if name in left:
                values[name] = left.pop(name)
            elif name not in values:
                raise TypeError(f"no argument for {name}")
        if given.kwarg:
            values[given.kwarg.arg] = left
        elif left:
            raise TypeError(f"unexpected arguments {sorted(left)}")
        return values


class _Manager(Model):
    """What a function with ``@contextmanager`` returns. All of it ran on entry."""

    def __init__(self, yielded: Iterator[Any]) -> None:
        self._bound = next(yielded)

    def entered(self) -> Any:
        return self._bound


def _decorated(function: Function) -> Any:
    """Return the function, or a context manager made of it. What other decorators do is ignored."""
    if "contextmanager" in map(ast.unparse, function.node.decorator_list):
        return lambda *args, **kwargs: _Manager(function(*args, **kwargs))
    return function


class Walk:
    """One run through a file. ``names`` are the stand-ins for what it imports."""

    def __init__(self, data: bytes, names: Mapping[str, Any], truth: bool = False) -> None:
        self.names, self.truth, self.steps = names, truth, 0
        self.definitions, self.imported = _top_level(data)
        self.module = Scope(self)
        self.builtins = {item.__name__: item for item in _OF_VALUES | _OTHERS} | {
            "isinstance": self._isinstance,
            "getattr": self._getattr,
            "hasattr": lambda value, name: self._getattr(value, name, _NEVER) is not _NEVER,
            "print": lambda *_, **__: None,
            "globals": lambda: Globals(self),
            "object": object,
            "__name__": "the module",
        }

    def function(self, name: str) -> Function:
        """Return a function, or a method as ``Class.method``, which needs its ``self``."""
        first, _, rest = name.partition(".")
        found = self.global_value(first)
        made = found.function(rest) if rest else found
        assert isinstance(made, Function)
        return made

    def global_value(self, name: str) -> Any:
        """Return a name of the module or a builtin. Raises NameError if the file does not bind it."""
        if name in self.module.values:
            return self.module.values[name]
        if name in self.definitions:
            node = self.definitions[name]
            if isinstance(node, ast.FunctionDef):
                made: Any = _decorated(Function(node, self.module))
            elif isinstance(node, ast.ClassDef):
                made = Class(node, self.module)
            else:
                made = self.value(node, self.module)
            self.module.values[name] = made
            return made
        if name in self.imported:
            return self._imported(self.imported[name], name)
        if name in self.builtins:
            return self.builtins[name]
        found = getattr(builtins, name, None)
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
        if found is not None:
            raise BeyondError(f"the builtin {name}")
        raise NameError(name)

    def _imported(self, name: str, bound: str) -> Any:
        """Return the stand-in for an import, which has its name there or here."""
        return self.names.get(bound, self.names.get(name, Unknown(bound, self.truth)))

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> Any:
        """Run statements; return [value] after ``return``, a mark after ``continue``, else None."""
        for node in body:
            self.steps += 1
            if self.steps > STEPS:
                raise BeyondError("it does not end")
            done = _handler(type(node).__name__)(self, node, scope)
            if done is not None:
                return done
        return None

    def value(self, node: ast.expr, scope: Scope) -> Any:
        return _handler(type(node).__name__)(self, node, scope)

    def attribute(self, value: Any, name: str) -> Any:
        if isinstance(value, Model):
            return value.attribute(name)
        if value is None or (isinstance(value, (str, int, float, list, tuple, dict, set)) and name[0] != "_"):
            return getattr(value, name)
        if isinstance(value, Class) and name in value.members:
            return value.function(name)
        if isinstance(value, type) and name == "__name__":
            return value.__name__
        raise BeyondError(f"{name} of {value!r}")

    def _getattr(self, value: Any, name: str, default: Any = None) -> Any:
        try:
            return self.attribute(value, name)
        except AttributeError:
            if default is None:
                raise
            return default

    @staticmethod
    def _isinstance(value: Any, kinds: Any) -> Any:
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        for kind in kinds:
            if isinstance(kind, Unknown) or isinstance(value, Unknown):
                return value if isinstance(value, Unknown) else kind
            if isinstance(kind, Class):
                if isinstance(value, Instance) and value.made_by.name == kind.name:
                    return True
            elif isinstance(value, kind):
                return True
        return False

    # Statements.

    def _do_Expr(self, node: ast.Expr, scope: Scope) -> None:
        if not isinstance(node.value, ast.Constant):
            self.value(node.value, scope)

    def _do_Pass(self, node: ast.Pass, scope: Scope) -> None:
        pass

    def _do_Return(self, node: ast.Return, scope: Scope) -> list[Any]:
        return [None if node.value is None else self.value(node.value, scope)]

    def _do_Continue(self, node: ast.Continue, scope: Scope) -> object:
        return _CONTINUE

    def _do_Assign(self, node: ast.Assign, scope: Scope) -> None:
        found = self.value(node.value, scope)
        for target in node.targets:
            self._assign(target, found, scope)

    def _do_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self._assign(node.target, self.value(node.value, scope), scope)

    def _do_AugAssign(self, node: ast.AugAssign, scope: Scope) -> None:
        load: Any = ast.copy_location(type(node.target)(**{**vars(node.target), "ctx": ast.Load()}), node.target)
        left, right = self.value(load, scope), self.value(node.value, scope)
        if isinstance(left, list) and isinstance(node.op, ast.Add):
            left += right
            self._assign(node.target, left, scope)
        else:
            self._assign(node.target, self._operate(node.op, left, right), scope)

    def _do_Delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.get(target.id)
                del scope.elsewhere.get(target.id, scope).values[target.id]
            elif isinstance(target, ast.Subscript):
                del self.value(target.value, scope)[self.value(target.slice, scope)]
            else:
                raise BeyondError("del of an attribute")

    def _do_If(self, node: ast.If, scope: Scope) -> Any:
        return self.block(node.body if self.value(node.test, scope) else node.orelse, scope)

    def _do_Assert(self, node: ast.Assert, scope: Scope) -> None:
        if not self.value(node.test, scope):
            raise AssertionError(ast.unparse(node.test))

    def _do_Raise(self, node: ast.Raise, scope: Scope) -> None:
        error = RuntimeError("reraised") if node.exc is None else self.value(node.exc, scope)
        raise error if isinstance(error, (type, Exception)) else RuntimeError(str(error))

    def _do_For(self, node: ast.For, scope: Scope) -> Any:
        for item in self.value(node.iter, scope):
            self._assign(node.target, item, scope)
            done = self.block(node.body, scope)
            if isinstance(done, list):
                return done
        return self.block(node.orelse, scope)

    def _do_With(self, node: ast.With, scope: Scope) -> Any:
        for item in node.items:
            manager = self.value(item.context_expr, scope)
            if not isinstance(manager, Model):
                raise BeyondError(f"with {manager!r}")
            if item.optional_vars is not None:
                self._assign(item.optional_vars, manager.entered(), scope)
        return self.block(node.body, scope)

    def _do_Try(self, node: ast.Try, scope: Scope) -> Any:
        try:
            done = self.block(node.body, scope)
            if done is None:
                done = self.block(node.orelse, scope)
        except Exception as error:
            for handler in node.handlers:
                kinds = () if handler.type is None else self.value(handler.type, scope)
                named = tuple(kind for kind in _flat(kinds) if isinstance(kind, type))
                if handler.type is None or isinstance(error, named):
                    if handler.name:
                        scope.set(handler.name, Unknown(handler.name, self.truth))
                    done = self.block(handler.body, scope)
                    break
            else:
                self.block(node.finalbody, scope)
                raise
        last = self.block(node.finalbody, scope)
        return done if last is None else last

    def _do_FunctionDef(self, node: ast.FunctionDef, scope: Scope) -> None:
        scope.set(node.name, Function(node, scope))

    def _do_Global(self, node: ast.Global, scope: Scope) -> None:
        scope.elsewhere |= dict.fromkeys(node.names, self.module)

    def _do_Import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for item in node.names:
            bound = (item.asname or item.name).split(".")[0]
            scope.set(bound, self._imported(item.name, bound))

    _do_ImportFrom = _do_Import

    def _assign(self, target: ast.expr, found: Any, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.set(target.id, found)
        elif isinstance(target, ast.Subscript):
            self.value(target.value, scope)[self.value(target.slice, scope)] = found
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, scope)
            if isinstance(owner, Names):
                owner.attributes[target.attr] = found
            elif not isinstance(owner, Unknown):
                raise BeyondError(f"{target.attr} of {owner!r} is set")
        elif isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(found, Unknown):
                found = [found] * len(target.elts)
            parts = list(found)
            if any(isinstance(item, ast.Starred) for item in target.elts):
                raise BeyondError("a starred target")
            if len(parts) != len(target.elts):
                raise ValueError(f"{len(parts)} values for {len(target.elts)} targets")
            for item, part in zip(target.elts, parts):
                self._assign(item, part, scope)
        else:
            raise BeyondError(type(target).__name__)

    # Expressions.

    def _of_Constant(self, node: ast.Constant, scope: Scope) -> Any:
        return node.value

    def _of_Name(self, node: ast.Name, scope: Scope) -> Any:
        return scope.get(node.id)

    def _of_Attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        return self.attribute(self.value(node.value, scope), node.attr)

    def _of_Subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        return self.value(node.value, scope)[self.value(node.slice, scope)]

    def _of_Slice(self, node: ast.Slice, scope: Scope) -> slice:
        return slice(
            *(None if part is None else self.value(part, scope) for part in (node.lower, node.upper, node.step))
        )

    def _of_Tuple(self, node: ast.Tuple, scope: Scope) -> tuple[Any, ...]:
        return tuple(self._elements(node.elts, scope))

    def _of_List(self, node: ast.List, scope: Scope) -> list[Any]:
        return self._elements(node.elts, scope)

    def _elements(self, nodes: Sequence[ast.expr], scope: Scope) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found += self.value(node.value, scope)
            else:
                found.append(self.value(node, scope))
        return found

    def _of_Dict(self, node: ast.Dict, scope: Scope) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for key, item in zip(node.keys, node.values):
            found = self.value(item, scope)
            made |= found if key is None else {self.value(key, scope): found}
        return made

    def _of_JoinedStr(self, node: ast.JoinedStr, scope: Scope) -> str:
        return "".join(str(self.value(part, scope)) for part in node.values)

    def _of_FormattedValue(self, node: ast.FormattedValue, scope: Scope) -> Any:
        return self.value(node.value, scope)

    def _of_IfExp(self, node: ast.IfExp, scope: Scope) -> Any:
        return self.value(node.body if self.value(node.test, scope) else node.orelse, scope)

    def _of_BoolOp(self, node: ast.BoolOp, scope: Scope) -> Any:
        found = None
        for part in node.values:
            found = self.value(part, scope)
            if bool(found) is isinstance(node.op, ast.Or):
                break
        return found

    def _of_UnaryOp(self, node: ast.UnaryOp, scope: Scope) -> Any:
        return self._operate(node.op, self.value(node.operand, scope))

    def _of_BinOp(self, node: ast.BinOp, scope: Scope) -> Any:
        return self._operate(node.op, self.value(node.left, scope), self.value(node.right, scope))

    def _of_Compare(self, node: ast.Compare, scope: Scope) -> Any:
        left, found = self.value(node.left, scope), None
        for op, item in zip(node.ops, node.comparators):
            right = self.value(item, scope)
            found = self._operate(op, left, right)
            if not found:
                break
            left = right
        return found

    def _operate(self, op: ast.AST, *sides: Any) -> Any:
        unknown = next((side for side in sides if isinstance(side, Unknown)), None)
        if unknown is not None:
            if isinstance(op, (ast.Is, ast.IsNot)) and None in sides:
                return unknown.truth is isinstance(op, ast.IsNot)
            return not unknown if isinstance(op, ast.Not) else unknown
        if type(op) not in _OPERATORS:
            raise BeyondError(type(op).__name__)
        return _OPERATORS[type(op)](*sides)

    def _of_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        found = self.value(node.value, scope)
        self._assign(node.target, found, scope)
        return found

    def _of_Yield(self, node: ast.Yield, scope: Scope) -> None:
        scope.yielded.append(None if node.value is None else self.value(node.value, scope))

    def _of_Call(self, node: ast.Call, scope: Scope) -> Any:
        called = self.value(node.func, scope)
        args = self._elements(node.args, scope)
        kwargs: dict[str, Any] = {}
        for item in node.keywords:
            found = self.value(item.value, scope)
            kwargs |= found if item.arg is None else {item.arg: found}
        if (isinstance(called, type) and called in _OF_VALUES) or called in (len, repr, abs, min, max, sum, round):
            unknown = [item for item in args if isinstance(item, Unknown)]
            if unknown:
                return unknown[0]
        if not callable(called):
            raise TypeError(f"{called!r} is not callable")
        return called(*args, **kwargs)

    def _of_GeneratorExp(self, node: ast.GeneratorExp, scope: Scope) -> Iterator[Any]:
        return iter(self._comprehended(node.elt, node.generators, scope))

    def _of_ListComp(self, node: ast.ListComp, scope: Scope) -> list[Any]:
        return self._comprehended(node.elt, node.generators, scope)

    def _comprehended(self, element: ast.expr, loops: Sequence[ast.comprehension], scope: Scope) -> list[Any]:
        if not loops:
            return [self.value(element, scope)]
        found: list[Any] = []
        for item in self.value(loops[0].iter, scope):
            inner = Scope(self, scope)
            self._assign(loops[0].target, item, inner)
            if all(self.value(test, inner) for test in loops[0].ifs):
                found += self._comprehended(element, loops[1:], inner)
        return found


class Globals(Model):
    """What ``globals()`` returns."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk

    def get(self, name: str, default: Any = None) -> Any:
        defined = name in self._walk.module.values or name in self._walk.definitions or name in self._walk.imported
        return self._walk.global_value(name) if defined else default

    def __getitem__(self, name: str) -> Any:
        found = self.get(name, _NEVER)
        if found is _NEVER:
            raise KeyError(name)
        return found

    def __contains__(self, name: str) -> bool:
        return self.get(name, _NEVER) is not _NEVER


@cache
def _handler(kind: str) -> Callable[[Walk, Any, Scope], Any]:
    """Return what interprets this kind of node."""
    found: Callable[[Walk, Any, Scope], Any] | None = getattr(Walk, f"_of_{kind}", getattr(Walk, f"_do_{kind}", None))
    if found is None:
        raise BeyondError(kind)
    return found


def _flat(kinds: Any) -> Sequence[Any]:
    return kinds if isinstance(kinds, tuple) else (kinds,)


@cache
def _locals(node: ast.FunctionDef) -> tuple[frozenset[str], bool]:
    """Return a function's local names, and whether it is a generator."""
    bound: set[str] = set()
    elsewhere: set[str] = set()
    generates, open_nodes = False, list[ast.AST](node.body)
    while open_nodes:
        item = open_nodes.pop()
        if isinstance(item, ast.Global):
            elsewhere |= {*item.names}
        elif isinstance(item, ast.Name) and not isinstance(item.ctx, ast.Load):
            bound.add(item.id)
        elif isinstance(item, (ast.Import, ast.ImportFrom)):
            bound |= {(it.asname or it.name).split(".")[0] for it in item.names}
        generates |= isinstance(item, (ast.Yield, ast.YieldFrom))
        if isinstance(item, (ast.FunctionDef, ast.ClassDef)):
            bound.add(item.name)
        elif not isinstance(item, (ast.ListComp, ast.GeneratorExp)):
            open_nodes += ast.iter_child_nodes(item)
    return frozenset(bound - elsewhere), generates


@cache
def _top_level(data: bytes) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return the nodes of the names that a file defines, and what those are called that it imports."""
    definitions: dict[str, Any] = {}
    tree = ast.parse(data)
    open_nodes: list[ast.stmt] = tree.body
    while open_nodes:
        node, *open_nodes = open_nodes
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign):
            definitions |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            definitions[node.target.id] = node.value
        elif isinstance(node, (ast.If, ast.Try)):
            open_nodes = [*node.body, *(node.orelse if isinstance(node, ast.Try) else []), *open_nodes]
    imported = {}
    inner = {id(it) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for it in ast.walk(node)}
    for found in ast.walk(tree):
        if isinstance(found, (ast.Import, ast.ImportFrom)) and id(found) not in inner:
            for item in found.names:
                imported[(item.asname or item.name).split(".")[0]] = item.name
    return definitions, imported

"""What the end state of one target is: its configurations, how the function runs in one, and what is wrong there."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from functools import cache
from types import CodeType
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.standin import Globals
from unhang.shapes import shape
from unhang.shapes.shape import Function


class Source(NamedTuple):
    """A whole source file that has the function. Of it, only what the end state extracts is ever run."""

    text: str
    name: str
    """The function's qualified name."""

    @property
    def function(self) -> Function:
        return _function(self)

    @property
    def bound(self) -> frozenset[str]:
        """The names that the file binds."""
        return _bound(self)


class Outcome(NamedTuple):
    """What the function did in one configuration."""

    faults: frozenset[str]
    """What is wrong; if there is nothing, the configuration passed."""
    seen: Any
    """All that was recorded."""


class EndState:
    """The end state of one target. The module of a fix maps qualified function names to these in ``END_STATES``."""

    varied: ClassVar[Mapping[str, str]]
    """The dimension that varies each condition of the function, by the condition's name in ``branches``."""
    held: ClassVar[Mapping[str, str]] = {}
    """Why a condition is not varied."""
    without: ClassVar[Mapping[str, Any]] = {}
    """What a configuration has in place of what the fix cures."""

    def part(self, function: Function) -> ast.stmt:
        """Return the only statement of a long function that ``observe`` runs. The rewrite must change no other one."""
        return function

    def configurations(self, function: Function) -> Iterator[Any]:
        """Yield every configuration that this shape of the function can tell apart."""
        raise NotImplementedError

    def observe(self, source: Source, configuration: Any) -> Outcome:
        """Run the function on stand-ins. What it raises is caught by the caller."""
        raise NotImplementedError

    def has_feature(self, source: Source) -> bool:
        """Return whether the function has the feature that the fix is about.

        ``observe`` must hold a function without it to that: then no mistake here passes for ``not-affected``.
        """
        return True

    def concerned(self, configuration: Any) -> bool:
        """Return whether the fix plays a part here. Where it does not, the same must be seen before and after."""
        raise NotImplementedError

    def same(self, before: Any, after: Any) -> bool:
        """Return whether two things seen are the same, where the fix plays no part."""
        return bool(before == after)

    def control(self, configuration: Any) -> Any:
        """Return the same configuration without what the fix cures, if the fix plays a part here; else None.

        If the untouched function passes there, the rewritten one must pass here. None, too, where upstream's own fix
        fails and that is no reason to call the function broken.
        """
        return configuration._replace(**self.without) if self.without and self.concerned(configuration) else None


def described(configuration: Any) -> str:
    """Return what is not at its default in a configuration, which is a named tuple."""
    defaults = configuration._field_defaults
    chosen = {name: value for name, value in configuration._asdict().items() if value != defaults.get(name)}
    return ", ".join(f"{name}={value}" for name, value in chosen.items()) or "the defaults"


def called(source: Source, names: Mapping[str, Any]) -> Any:
    """Define the function alone, with stand-ins for the names of its file, and return it."""
    namespace = Globals(names, source.bound)
    exec(_code(source), namespace)  # noqa: S102 - upstream's code, in the sandbox
    return namespace[source.function.name]


def importing(modules: Mapping[str, Any]) -> dict[str, Any]:
    """Return the built-ins of a function that imports these modules itself. It gets any other module as it is."""

    def imported(name: str, *context: Any) -> Any:
        return modules[name] if name in modules else builtins.__import__(name, *context)

    return {**vars(builtins), "__import__": imported}


@cache
def _code(source: Source) -> CodeType:
    return compile(ast.Module([plain(source.function)], []), "<upstream>", "exec", dont_inherit=True)


@cache
def _bound(source: Source) -> frozenset[str]:
    return shape.bound_names(ast.parse(source.text))


def parameters(function: Function) -> frozenset[str]:
    """Return the names of a function's positional arguments, by which a release is told from another."""
    return frozenset(argument.arg for argument in function.args.args)


def plain(node: ast.stmt) -> ast.stmt:
    """Return a copy without annotations and decorators of functions: these need names that the stand-ins lack."""
    (copy,) = ast.parse(ast.unparse(node)).body
    for inner in ast.walk(copy):
        if isinstance(inner, ast.arg):
            inner.annotation = None
        elif isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner.returns = None
            inner.decorator_list = [it for it in inner.decorator_list if inner is not copy and _is_builtin(it)]
    return copy


def _is_builtin(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id in ("property", "staticmethod", "classmethod")


@cache
def _function(source: Source) -> Function:
    (found,) = shape.find(ast.parse(source.text), source.name)
    return found

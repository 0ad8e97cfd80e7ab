"""How a function's text gets into its module. Then, with torch: what a scene's settings show of it."""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from unhang.prove import scene
from unhang.prove.cases import DIFFERS, PASSED, Case, Topology
from unhang.prove.conditions import Conditions
from unhang.prove.ranks import gloo

_BEFORE = """
from contextlib import nullcontext
from functools import wraps
STEP = 1

def twice(function):
    @wraps(function)
    def called(*args):
        return 2 * function(*args)
    return called

class Base:
    def grown(self, x):
        return x

class Grown(Base):
    __more = 10

    def grown(self, x):
        return super().grown(x)

    @staticmethod
    def fixed(x):
        return x

if STEP:
    class Conditional:
        def grown(self, x):
            return x

def plain(x):
    return x
"""

_PLAIN = "def own(x):\n    return 2 * x + STEP\n\ndef plain(x):\n    return own(x)"


def changed(*pairs: tuple[str, str]) -> str:
    text = _BEFORE
    for old, new in pairs:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = ModuleType("made_up")
    exec(_BEFORE, vars(made))
    monkeypatch.setitem(sys.modules, "made_up", made)
    return made


def test_a_method_keeps_its_class_and_its_own_names(module: Any) -> None:
    text = changed(("        return super().grown(x)", "        return super().grown(x) + self.__more + STEP"))
    scene.place(module, "Grown.grown", text)
    assert module.Grown().grown(1) == 12


def test_a_method_brings_what_it_uses_and_its_class_lacks(module: Any) -> None:
    own = "\n    def own(self):\n        return super().grown(5) + self.__more\n\n    def unused(self):\n        pass\n"
    text = changed(
        ("        return super().grown(x)\n", f"        return self.own() + self.fixed(x)\n{own}"),
        ("        return x\n\nif", "        return None\n\nif"),
    )
    scene.place(module, "Grown.grown", text)
    assert module.Grown().grown(1) == 16
    assert not hasattr(module.Grown, "unused")


def test_a_plain_function_brings_what_it_uses_and_its_module_lacks(module: Any) -> None:
    scene.place(module, "plain", changed(("def plain(x):\n    return x", _PLAIN)))
    assert module.plain(1) == 3


def test_a_method_has_its_decorators(module: Any) -> None:
    text = changed(
        (
            "    def grown(self, x):\n        return super()",
            "    @twice\n    def grown(self, x):\n        return super()",
        )
    )
    scene.place(module, "Grown.grown", text)
    assert module.Grown().grown(3) == 6
    scene.place(
        module, "Grown.fixed", changed(("    def fixed(x):\n        return x", "    def fixed(x):\n        return -x"))
    )
    assert (module.Grown.fixed(1), module.Grown().fixed(1)) == (-1, -1)


def test_a_class_may_be_under_a_condition(module: Any) -> None:
    grown = "        def grown(self, x):\n            return "
    text = changed((f"{grown}x", f"{grown}-x"))
    scene.place(module, "Conditional.grown", text)
    assert module.Conditional().grown(1) == -1


def test_a_function_is_replaced_where_it_was_imported_to(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    user = ModuleType("user_of_made_up")
    vars(user)["named"] = module.plain
    monkeypatch.setitem(sys.modules, "user_of_made_up", user)
    scene.place(module, "plain", changed(("def plain(x):\n    return x", "def plain(x):\n    return x + STEP")))
    module.STEP = 5
    assert (module.plain(1), vars(user)["named"](1)) == (6, 6)


_BRANCHES = """
def plain(x, y=0):
    assert x is not None
    with nullcontext():
        y = y or 0
    def never(z):
        if z and (
            z > 1
        ):
            return 0
        return (z or 1) and (
            z
        )
    if x > 1 and y:
        return [it for it in range(x) if it != 2]
    return 0 if x else 7
"""


def test_each_condition_must_go_both_ways(module: Any) -> None:
    code = scene.place(module, "plain", _BRANCHES)

    def left(*calls: tuple[int, int], held: dict[str, str] | None = None) -> list[str]:
        followed = Conditions(code, _BRANCHES, {"never": "no one calls it"} if held is None else held)
        for call in calls:
            with followed:
                module.plain(*call)
        return followed.open()

    every = [(0, 1), (2, 0), (3, 1)]
    assert left(*every) == []
    for gone in every:  # each decides something that no other does
        assert left(*(call for call in every if call != gone)), gone
    assert len(left()) >= 3
    operand = " `y`" * (sys.version_info >= (3, 11))
    assert left(*every[:2])[0].endswith(f" (line 14{operand} goes on to line 16 alone)")
    assert all(text.endswith(" never ran)") for text in left())
    first, *others = (text.partition(" (line ")[0] for text in left(*every, held={}))
    assert first in ("z", "if z and ( z > 1 ):")
    has_places = sys.version_info >= (3, 11)
    assert others == ["z > 1", *(["z or 1", "return (z or 1) and ( z )"] if has_places else ["return (z or 1) and ("])]
    assert left(held={".": "nobody sets it"}) == []


_RANKS = "import torch.distributed as dist; two = dist.get_world_size() == 2"


def _scene(wrong: Any, due: Collection[int]) -> Any:
    grid = [
        Case(f"{x} on {ranks}", Topology(dp=ranks), DIFFERS if x == 3 and ranks in due else PASSED, options={"x": x})
        for ranks in (1, 2)
        for x in range(5)
    ]
    return SimpleNamespace(
        GRID=grid,
        on_rank=lambda case, rank: sys.modules["made_up"].plain(case.options["x"]),
        wrong=lambda case, ranks: wrong(case, ranks),
        right=lambda case, ranks: "fine",
    )


def _played(module: Any, text: str, first: bool = False, due: Collection[int] = (1, 2)) -> scene.Played:
    """Play a scene in which a cure is due on so many ranks."""
    right = _scene(lambda case, ranks: "" if {*ranks} == {case.options["x"]} else f"{ranks}", due)
    return scene.play(right, module, "plain", text, feature=True, watched=True, first=first, deadline_s=1.0)


@pytest.mark.torch
def test_a_scene_tells_which_settings_fail_and_which_texts_do_the_same(module: Any) -> None:
    fine = _played(module, _BEFORE)
    assert (fine.wrong, fine.ran, fine.open) == ({}, 10, [])
    assert fine.seen == _played(module, changed(("def plain(x):\n    return x", "def plain(x):\n    return +x"))).seen
    wrong = changed(("def plain(x):\n    return x", "def plain(x):\n    return 4 if x == 3 else x"))
    assert {*_played(module, wrong).wrong} == {"3 on 1", "3 on 2"}
    assert {*_played(module, wrong, first=True).wrong} == {"3 on 1"}
    on_two = changed(
        ("def plain(x):\n    return x", f"def plain(x):\n    {_RANKS}\n    return 4 if x == 3 and two else x")
    )
    assert _played(module, on_two, first=True)[:2] == ({"3 on 2": "[4, 4]"}, 6), "the others do not run"
    assert _played(module, on_two, first=True, due=[2]).ran == 1, "where no cure is due runs last"
    held = changed(("def plain(x):\n    return x", "def plain(x):\n    return x if x < 9 else 0"))
    assert (_played(module, held).wrong, len(_played(module, held).open)) == ({}, 1)


@pytest.mark.torch
def test_a_setting_that_raises_hangs_or_dies_costs_no_other(module: Any) -> None:
    begin = "def plain(x):\n    return x", "def plain(x):\n    import os, time, torch.distributed as dist\n"
    raises = begin[0], begin[1] + "    if x == 3: raise KeyError(x)\n    return x"
    found = [why.partition(" at ")[0] for why in _played(module, changed(raises)).wrong.values()]
    assert found == ["crashed: rank 0 raised KeyError: 3", "crashed: rank 0, 1 raised KeyError: 3"]
    dies = begin[0], begin[1] + "    if x == 3 and dist.get_rank(): os._exit(3)\n    return x"
    assert {name: why.split(";")[0] for name, why in _played(module, changed(dies)).wrong.items()} == {
        "3 on 2": "crashed: rank 1 died with exit code 3"
    }
    hangs = begin[0], begin[1] + "    if x == 3 and dist.get_rank(): dist.barrier()\n    return x"
    (why,) = _played(module, changed(hangs)).wrong.values()
    assert why.startswith("hung: rank 1 waits in ")
    reaches = begin[0], begin[1] + "    os.system('true')\n    return x"
    assert "reaches for the system (os.system)" in next(iter(_played(module, changed(reaches)).wrong.values()))


@pytest.mark.torch
def test_the_setting_that_ends_several_ranks_is_run_alone_at_once(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forks, run = list[int](), gloo.run

    def counted(world: int, *given: Any, **others: Any) -> gloo.World:
        forks.append(world)
        return run(world, *given, **others)

    monkeypatch.setattr(gloo, "run", counted)
    dies = "def plain(x):\n    return x", "def plain(x):\n    import os\n    if x == 2: os._exit(3)\n    return x"
    assert _played(module, changed(dies), first=True).wrong == {"2 on 1": "crashed: rank 0 died with exit code 3"}
    assert forks == [1], "a lone rank ends as it would alone"
    of_two = dies[1].replace("os\n", "os, torch.distributed as dist\n").replace("x == 2", "x == 2 and dist.get_rank()")
    assert {*_played(module, changed((dies[0], of_two)), first=True, due=[2]).wrong} == {"2 on 2"}
    assert forks == [1, 2, 2], "all together, and this one"


@pytest.mark.torch
def test_what_the_scene_cannot_judge_is_wrong(module: Any) -> None:
    text = changed(("def plain(x):\n    return x", "def plain(x):\n    return {1: x} if x == 3 else x"))
    why = "crashed: what the ranks return cannot be judged: TypeError: unhashable type: 'dict'"
    assert _played(module, text).wrong == {"3 on 1": why, "3 on 2": why}

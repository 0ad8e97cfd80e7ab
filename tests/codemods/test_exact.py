"""What the edits of a diff do to a file: lines for lines, and nothing where they do not fit."""

import codecs

import pytest

from support import exact
from support.exact import EDITS, PATCHED, PLAIN, target
from unhang.codemods.exact import ADDED, AFTER, BEFORE, HEADER, IMPORT, REPLACED, Exact, Swap
from unhang.rewrite import one_file, own_lines
from unhang.rewrite.one_file import RewriteError, Step, rewrite
from unhang.shapes.catalog import Target


def done(code: str, edits: dict[Target, Exact], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(one_file, "exact", lambda it: edits[it])
    return rewrite(code.encode(), [Step(it, None) for it in edits]).data.decode()


def refused(code: str, edits: dict[Target, Exact], monkeypatch: pytest.MonkeyPatch) -> str:
    with pytest.raises(RewriteError) as caught:
        done(code, edits, monkeypatch)
    return str(caught.value)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_each_kind_of_edit(end: str, bom: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (bom + PLAIN).replace("\n", end)
    assert done(code, dict(EDITS), monkeypatch) == (bom + PATCHED).replace("\n", end)


@pytest.mark.parametrize("one", EDITS, ids=lambda it: it.function)
def test_a_second_pass_finds_nothing_to_do(one: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    only = {one: EDITS[one]}
    first = PLAIN if one.function != "sys" else PLAIN.replace("Any, ", "").replace("LIMIT", "Any = 1\nLIMIT")
    once = done(first, only, monkeypatch)
    assert once != first
    assert "not found" in refused(once, only, monkeypatch) or "no " in refused(once, only, monkeypatch)


@pytest.mark.parametrize(
    ("code", "name", "swap", "result"),
    [
        ("a = 1\nb = 2\n", "a", Swap(REPLACED, "a = 1\n", ""), "# unhang exact: without a\nb = 2\n"),
        ("import a, b\n", "b", Swap(IMPORT, "import b\n", ""), "# unhang exact: without b\nimport a\n"),
        ("from a import b", "b", Swap(IMPORT, "from a import b\n", "from c import b\n"),
         "# unhang exact: unproved\nfrom c import b\n"),
        ("try:\n\timport b\nexcept E:\n\tb = 1\n", "b", Swap(REPLACED, "b = 1\n", "b = 2\n"),
         "try:\n\timport b\nexcept E:\n\t# unhang exact: unproved\n\tb = 2\n"),
        ("@o\ndef f(a): ...\ndef f(a):\n  return a\n", "f", Swap(REPLACED, "return a\n", "return b\n"),
         "@o\ndef f(a): ...\ndef f(a):\n  # unhang exact: unproved\n  return b\n"),
        ("async def f():\n  # of x\n  x()\n", "f", Swap(BEFORE, "x()\n", "y()\n"),
         "async def f():\n  # of x\n  # unhang exact: unproved\n  y()\n  x()\n"),
        ("def f():\n  # of x\n  x()\n", "f", Swap(BEFORE, "# of x\nx()\n", "# of y\ny()\n\n# of x\n"),
         "def f():\n  # unhang exact: unproved\n  # of y\n  y()\n\n  # of x\n  x()\n"),
        ("def f():\n  # mine\n  x()\n", "f", Swap(BEFORE, "# of x\nx()\n", "# of y\ny()\n\n# of x\n"),
         "def f():\n  # unhang exact: unproved\n  y()\n  # mine\n  x()\n"),
        ("def f():\n  '''A'''\n  x()\n\n  # z\n", "f", Swap(REPLACED, "'''A'''\nx()\n\n# z\n", "'''B'''\ny()\n"),
         "def f():\n  # unhang exact: unproved\n  '''B'''\n  y()\n"),
        ("def f():\n  '''C'''\n  x()\n\n  # z\n", "f", Swap(REPLACED, "'''A'''\nx()\n\n# z\n", "'''B'''\ny()\n"),
         "def f():\n  '''C'''\n  # unhang exact: unproved\n  y()\n"),
        ("def f():\n  with x():\n    pass\n", "f", Swap(AFTER, "with x():\n    ...\n", "y()\n"),
         "def f():\n  with x():\n    pass\n  # unhang exact: unproved\n  y()\n"),
        ("class A:\n  def f(self):\n    def g(a):\n      return a\n", "A.f",
         Swap(HEADER, "def g(a):\n", "def g(b,\n      c):\n"),
         "class A:\n  def f(self):\n    # unhang exact: unproved\n    def g(b,\n          c):\n      return a\n"),
        ("class A(B):  # why\n  # x\n  pass\n", "A", Swap(HEADER, "class A(B):\n", "class A(C):\n"),
         "# unhang exact: unproved\nclass A(C):\n  # x\n  pass\n"),
        ("class A:\n  pass\n", "A", Swap(REPLACED, "class A:\n  pass\n", "class A:\n  x = '''\ny'''\n"),
         "# unhang exact: unproved\nclass A:\n  x = '''\ny'''\n"),
    ],
)  # fmt: skip
def test_the_text_that_it_gives(code: str, name: str, swap: Swap, result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert done(code, {target(name): Exact(swap)}, monkeypatch) == result


@pytest.mark.parametrize(
    ("code", "one", "swap", "why"),
    [
        ("x = 1; a = 1\n", target("a"), Swap(REPLACED, "a = 1\n", "a = 2\n"), "lines of their own"),
        ("def f(): return 1\n", target("f"), Swap(HEADER, "def f():\n", "def f(a):\n"), "lines of its own"),
        ("a = 1\na = 1\n", target("a"), Swap(REPLACED, "a = 1\n", "a = 2\n"), "2 times"),
        ("a = 3\n", target("a"), Swap(REPLACED, "a = 1\n", "a = 2\n"), "not found"),
        ("a = 1\n", target("a", "after", "b"), Swap(ADDED, "", "a = 2\n"), "not found"),
        ("a = 1\n", target("A.b", "after", "c"), Swap(ADDED, "", "b = 2\n"), "no place for A.b"),
        ("def f():\n  x()\n", target("f"), Swap(REPLACED, "x()\n", "return = 1\n"), "whose text parses"),
        ("def f():\n  x()\n", target("f"), Swap(REPLACED, "x()\n", "await y\n"), "does not compile"),
        ("a = (\n", target("a"), Swap(REPLACED, "a = 1\n", "a = 2\n"), "does not parse"),
    ],
)
def test_what_does_not_fit_changes_nothing(
    code: str, one: Target, swap: Swap, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why in refused(code, {one: Exact(swap)}, monkeypatch)


def test_a_name_that_the_file_lacks_and_a_result_of_another_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    run = target("run")
    assert "does not define or import LIMIT" in refused("def run(x):\n    return x\n", {run: EDITS[run]}, monkeypatch)
    with pytest.raises(RewriteError, match="but 0123 is on record"):
        rewrite(PLAIN.encode(), [Step(run, "0123")])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_its_lines_are_put_back_beside_an_edit(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edits = {it: change for it, change in EDITS.items() if it.function not in ("Any", "sys")}
    bom = codecs.BOM_UTF8.decode()
    plain = (bom + PLAIN).replace("\n", end)
    after = done(plain, edits, monkeypatch)
    assert after.count("# unhang") == 6
    for mine in ("", f"# mine{end}x = 1{end}"):
        now, wanted = (it.replace("class Loop", f"{mine}class Loop").encode() for it in (after, plain))
        assert own_lines.put_back(now, plain.encode(), {it.function for it in edits}) == wanted


def test_the_support_is_about_one_file() -> None:
    assert {it.file for it in EDITS} == {exact.FILE}

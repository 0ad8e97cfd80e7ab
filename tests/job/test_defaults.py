"""The defaults of a release: of its parser, and of the dataclasses that arguments are made from, read as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.job import defaults, source
from unhang.job.settings import Job
from unhang.job.source import UNSET
from unhang.records import Installation, Pin

PARSER = """
import argparse
from a.config import Config, Gone
def add(parser):
    group = parser.add_argument_group("x")
    group.add_argument("--plain", type=int)
    group.add_argument("--with-default", "--old-name", default=3)
    group.add_argument("--flag", action="store_true")
    group.add_argument("--no-thing", action="store_false", dest="thing")
    group.add_argument("--both", action=argparse.BooleanOptionalAction, default=True)
    group.add_argument("--computed", default=1 + len("x"))
    group.add_argument("--worked-out")
    group.add_argument("--worked-out-with-another")
    group.add_argument("--unset")
    group.add_argument("positional", "-p")
    exclude = ["left_out"]
    ArgumentGroupFactory(Config, exclude=exclude).build_group(parser, "config")
def validate(args):
    if args.worked_out is None:
        args.worked_out = args.plain
    if args.flag:
        if args.worked_out_with_another is None:
            args.worked_out_with_another = 1
    if args.unset == 0:
        args.unset = None
"""
CONFIG = """
@dataclass
class Base:
    inherited: int = 7
    size: int = 1
@dataclass
class Config(Base):
    size: int = 2
    is_on: bool = True
    is_off: bool = False
    kind: Kind = Kind.auto
    left_out: int = 1
    nothing: Optional[int] = None
    made: list = field(default_factory=list)
    named: int = field(default=4, metadata={"argparse_meta": {"arg_names": ["--other-name"], "default": 5}})
    moved: bool = field(default=True, metadata={"argparse_meta": {"arg_names": ["--no-moving"], "dest": "moving"}})
    def __post_init__(self):
        if self.made:
            self.nothing = 1
"""


@pytest.fixture
def installed(tmp_path: Path) -> Installation:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/arguments.py").write_text(PARSER)
    (tmp_path / "a/config.py").write_text(CONFIG)
    root = str(tmp_path)
    return Installation("megatron-lm", "0.1", root, root, root, "source", None, ())


def test_a_parser_and_the_dataclasses_that_it_takes_arguments_from(installed: Installation) -> None:
    known = defaults.known({"parser": "a/arguments.py", "places": ["a"]}, installed, Job())
    assert known.values == {
        "plain": None, "with_default": 3, "flag": False, "thing": True, "both": True, "computed": UNSET,
        "worked_out": UNSET, "worked_out_with_another": None, "unset": None, "inherited": 7, "size": 2, "is_on": True,
        "is_off": False, "kind": "auto", "nothing": UNSET, "made": UNSET, "named": 5, "moving": True,
    }  # fmt: skip
    assert known.options == {
        "old_name": ("with_default", None), "no_thing": ("thing", False), "no_both": ("both", False),
        "no_is_on": ("is_on", False), "disable_is_on": ("is_on", False), "other_name": ("named", None),
        "no_moving": ("moving", False),
    }  # fmt: skip
    assert (known.source, known.is_whole) == ("default of megatron-lm 0.1", True)
    assert defaults.known({"parser": "a/arguments.py"}, installed, Job()).values["plain"] is None


def test_a_class_of_settings_is_whole_if_those_that_it_inherits_from_are_known(installed: Installation) -> None:
    how = {"classes": {"run": ["Gone", "Config"]}, "places": ["a"]}
    known = defaults.known(how, installed, Job(program="x run"))
    assert (known.values["inherited"], known.values["size"], known.is_whole) == (7, 2, True)
    Path(installed.root, "a/config.py").write_text(CONFIG.replace("class Base:", "class Base(Elsewhere):"))
    defaults._of_classes.cache_clear()
    source.classes.cache_clear()
    source.parsed.cache_clear()
    assert not defaults.known(how, installed, Job(program="/x/run.py")).is_whole
    assert defaults.known(how, installed, Job(program="x walk")) == defaults.Known()


def test_what_is_not_installed_or_no_python_has_no_defaults(installed: Installation) -> None:
    how = {"parser": "a/arguments.py", "places": ["a"]}
    assert defaults.known(how, None, Job()).why == "no release of it is installed here"
    assert defaults.known(how, installed._replace(pin=Pin("x")), Job()).why == "no release of it is installed here"
    Path(installed.root, "a/broken.py").write_text("def (")
    for name in "a/broken.py", "a/gone.py", "a":
        assert defaults.known({**how, "parser": name}, installed, Job()).why == f"megatron-lm 0.1 has no {name}"

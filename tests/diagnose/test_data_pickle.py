"""A pickle holds data, or it is refused; nothing in it runs."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest

from unhang.diagnose import recorder


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_in_a_pickle_runs(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps({"entries": _Runs(tmp_path / "ran")}, protocol)
    with pytest.raises(ValueError, match=r"it names \w+.mkdir"):
        recorder.unpickled(data)
    assert not (tmp_path / "ran").exists()
    pickle.loads(data)
    assert (tmp_path / "ran").exists(), "the same pickle, read by pickle"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pickle.dumps(OrderedDict(a=1)), "it names collections.OrderedDict"),
        (b"(icollections\nOrderedDict\n.", "it names collections.OrderedDict"),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "it names posix.system"),
        (b"\x80\x02Pname\n.", "persistent"),
        (b"\x80\x02\x82\x07.", "extension"),
        (b"\x80\x05\x97.", "buffer"),
        (b"\x80\x02}", "Ran out of input"),
        (b"\x80\x02X\xff\xff\xff\x7fx.", "truncated"),
        (b"", "Ran out of input"),
        (b"\xff\x00", "opcode|load key"),
    ],
)
def test_what_is_no_data_says_why(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        recorder.unpickled(data)

"""Facts about contents: each is computed once, and a content without one shape is unreadable."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from support.fake_index import CLEAN
from unhang.compat.sweep import as_written
from unhang.compat.sweep.learnt import Learnt, UnreadableError
from unhang.compat.sweep.sources import content
from unhang.shapes import shape

FUNCTION = "MegatronEngine.forward_backward_batch"
FOUND = content(CLEAN.encode())


def test_a_fact_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Mock(wraps=shape.parse)
    monkeypatch.setattr(shape, "parse", parse)
    learnt = Learnt()
    known = shape.digest(shape.find(shape.parse(CLEAN.encode()), FUNCTION)[0])
    assert [learnt.shape(content(CLEAN.encode()), FUNCTION) for _ in range(2)] == [known] * 2
    assert parse.call_count == 2, "once here, once there"


def test_a_content_without_one_shape_is_unreadable() -> None:
    for text, message in (CLEAN + "def (", "it does not parse"), (CLEAN + CLEAN, "is defined 2 times"):
        with pytest.raises(UnreadableError, match=message):
            Learnt().shape(content(text.encode()), FUNCTION)
    assert Learnt().shape(content(b"pass\n"), FUNCTION) is None


def test_a_pull_request_that_does_not_apply_or_parse_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(as_written, "applied", lambda diff, data: data.replace(b"0", diff.encode()) if diff else None)
    found = [Learnt().as_written(FOUND, diff) for diff in ("1", "(", "")]
    assert found == [content(CLEAN.replace("0", "1").encode()), None, None]

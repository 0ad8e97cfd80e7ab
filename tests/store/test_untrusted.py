"""JSON of unknown origin is checked before it is used. `test_receipt` and `test_journal` have more cases."""

from typing import Any

import pytest

from unhang.store import untrusted


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000])
def test_only_an_object_is_read(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        untrusted.json_object(data)
    assert untrusted.json_object(b'{"a": 1}') == {"a": 1}


@pytest.mark.parametrize("value", [{}, [], "a", {"a": True}, {"a": "1"}, {"a": None}])
def test_a_field_has_its_very_type(value: Any) -> None:
    with pytest.raises(ValueError, match="'a' is missing or of the wrong type"):
        untrusted.field(value, "a", int)
    assert untrusted.field({"a": 1}, "a", int) == 1


@pytest.mark.parametrize("path", ["", "/a", ".", "./a", "..", "../a", "a/../b", "a//b", "a/", "a\0b", "a\ud800"])
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not a plain path below the root"):
        untrusted.path({"path": path}, "path")


@pytest.mark.parametrize("path", ["a", "..a", "a b/c.py", "caf\u00e9", "caf\udce9"])
def test_a_plain_path_is_taken_as_it_is(path: str) -> None:
    assert untrusted.path({"path": path}, "path") == path


@pytest.mark.parametrize("text", ["", "a" * 63, "A" * 64, "a" * 64 + "\n", "../" + "a" * 61])
def test_a_digest_is_64_lowercase_hex_digits(text: str) -> None:
    with pytest.raises(ValueError, match="not a sha256"):
        untrusted.digest({"key": text}, "key")
    assert untrusted.digest({"key": "0" * 64}, "key") == "0" * 64

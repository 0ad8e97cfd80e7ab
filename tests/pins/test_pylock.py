"""pylock.toml: PEP 751, as packaging reads it, and what is said where that is too old."""

import sys
from pathlib import Path

import pytest

from support.lock_files import COMMIT, read
from unhang.errors import UnhangError
from unhang.records import Pin

HEAD = 'lock-version = "1.0"\ncreated-by = "pip"\n'
SDIST = 'sdist = { url = "https://a.example/NAME-VERSION.tar.gz", hashes = { sha256 = "00" } }\n'


def package(name: str, version: str, more: str = SDIST) -> str:
    head = f'[[packages]]\nname = "{name}"\n'
    version_line = f'version = "{version}"\n' if version else ""
    return head + version_line + more.replace("NAME", name).replace("VERSION", version)


def test_versions_markers_and_sources(tmp_path: Path) -> None:
    vcs = f'type = "git", url = "https://a.example/verl", requested-revision = "v1", commit-id = "{COMMIT}"'
    texts = [
        package("verl", "0.7.1", "marker = \"'rl' in extras\"\n" + SDIST),
        package("torch", "2.0"),
        package("verl", "", f"vcs = {{ {vcs} }}\n"),
        package("ms-swift", "", 'directory = { path = "swift" }\n'),
    ]
    assert read(tmp_path / "pylock.train.toml", HEAD + "".join(texts)) == (
        Pin("verl", "0.7.1", 4, when='"rl" in extras'),
        Pin("verl", "", 13, repository="https://a.example/verl", ref="v1", commit=COMMIT),
        Pin("ms-swift", "", 16, source="swift"),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEAD + package("verl", "0.7.1", ""), "Exactly one of vcs, directory, archive must be set"),
        (HEAD.replace("1.0", "2.0") + package("verl", "0.7.1"), "2.0"),
        (HEAD + package("verl", "0.7.1").replace('version = "0.7.1"', "version = 7"), "version"),
    ],
)
def test_what_packaging_refuses_is_damaged(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UnhangError) as raised:
        read(tmp_path / "pylock.toml", text)
    assert (raised.value.code, why in raised.value.message) == ("bad-lock", True), raised.value.message


def test_an_older_packaging_cannot_read_it_and_the_hint_is_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "packaging.pylock", None)
    with pytest.raises(UnhangError, match="packaging 26 or later") as raised:
        read(tmp_path / "pylock.toml", HEAD + package("verl", "0.7.1"))
    assert (raised.value.code, raised.value.hint) == ("no-lock-reader", "pip install 'unhang[lock]'")

"""Downloads, by the real pip from folders."""

import hashlib
import os
import sys
from importlib import util
from pathlib import Path

import pytest

from support import environments, wheels
from support.wheel_files import VERL, find_links
from unhang.deliver import download
from unhang.deliver.download import Download, Options
from unhang.errors import UnhangError

CORE = ("megatron-core", "0.17.1")
RUNNING = ".".join(map(str, sys.version_info[:2]))


def fetch(folder: Path, *request: str, options: list[str], python: str | None = None) -> Download:
    folder.mkdir()
    return download.fetch(request, Options(python, tuple(options)), str(folder))


def failed(folder: Path, *request: str, options: list[str], python: str | None = None) -> UnhangError:
    with pytest.raises(UnhangError) as caught:
        fetch(folder, *request, options=options, python=python)
    return caught.value


def test_a_wheel_for_another_python_is_taken_and_noted(tmp_path: Path) -> None:
    found = fetch(tmp_path / "to", "megatron-core==0.17.1", options=find_links(tmp_path / "index", CORE))
    assert [Path(path).read_bytes() for path in found.paths] == [wheels.fetch(*CORE).read_bytes()]
    note = f"megatron-core==0.17.1 has no wheel for Python {RUNNING}; this is its wheel for Python 3.12"
    assert found.note == (None if RUNNING == "3.12" else note)


def test_the_python_of_the_metadata_counts_too(tmp_path: Path) -> None:
    found = fetch(tmp_path / "to", "verl==0.9.1", options=find_links(tmp_path / "index", ("verl", "0.9.1")))
    assert (found.note is not None) == (sys.version_info >= (3, 13))  # its one wheel is tagged for any Python 3


@pytest.mark.slow
def test_a_release_without_a_wheel_for_the_python_that_was_asked_for_or_for_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_PYTHONS", ("3.12",))  # each takes a second
    options = find_links(tmp_path / "index", CORE)
    assert failed(tmp_path / "a", "megatron-core==0.17.1", options=options, python="3.9").code == "no-such-wheel"
    error = failed(tmp_path / "b", "verl==0.7.1", options=options)
    assert error.code == "no-such-wheel"
    assert error.message.startswith("pip could not download verl==0.7.1: No matching distribution")


def test_pip_checks_hashes(tmp_path: Path) -> None:
    options = [*find_links(tmp_path / "index", VERL), "--require-hashes"]
    requirements = tmp_path / "requirements.txt"
    digest = hashlib.sha256(wheels.fetch(*VERL).read_bytes()).hexdigest()
    requirements.write_text(f"verl==0.7.1 --hash=sha256:{digest}\n")
    assert len(fetch(tmp_path / "to", "-r", str(requirements), options=options).paths) == 1
    requirements.write_text(f"verl==0.7.1 --hash=sha256:{'0' * 64}\n")
    error = failed(tmp_path / "other", "-r", str(requirements), options=options)
    assert error.code == "download-failed"
    assert "DO NOT MATCH THE HASHES" in error.message
    assert digest in error.message


def test_an_index_that_cannot_be_reached_is_not_a_missing_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    error = failed(tmp_path / "to", "verl==0.7.1", options=["--index-url", "http://127.0.0.1:9/simple"])
    assert error.code == "download-failed"
    assert error.message == "pip could not download verl==0.7.1: the index cannot be reached (Connection refused)"


def test_without_pip_uv_provides_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = find_links(tmp_path / "index", VERL)
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec {environments.pip_python()} "$@"\n')
    uv.chmod(0o755)
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert len(fetch(tmp_path / "to", "verl==0.7.1", options=options).paths) == 1
    uv.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert failed(tmp_path / "other", "verl==0.7.1", options=options).code == "no-pip"

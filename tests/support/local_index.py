"""A package index on this machine: a pypiserver."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support import environments


@contextmanager
def serve(folder: Path, *, fallback: bool = True) -> Iterator[str]:
    """Serve the packages of a folder, and take uploads into it; yield the index's address, without /simple/.

    With ``fallback``, who asks for a package that it lacks is sent to the index that this machine uses.
    Raises AssertionError, with what the server wrote, if it ends or does not answer within a minute.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    options = ["--interface", "127.0.0.1", "--port", str(port), "--authenticate", ".", "--passwords", "."]
    if not fallback:
        options.append("--disable-fallback")
    elif url := _configured():
        options.append(f"--fallback-url={url}")
    command = [sys.executable, "-m", "pypiserver", "run", *options, str(folder)]
    with (folder.parent / "index.log").open("w+") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            deadline = time.monotonic() + 60
            while not _answers(address):
                log.seek(0)
                assert server.poll() is None, log.read()
                assert time.monotonic() < deadline, log.read()
                time.sleep(0.1)
            yield address
        finally:
            server.terminate()


def clients(address: str, home: Path) -> dict[str, str]:
    """Return variables by which pip, uv and pipx take an index, and keep what they cache and install in a folder."""
    index = f"{address}/simple/"
    kept = {"UV_CACHE_DIR": "uv", "UV_TOOL_DIR": "tools", "UV_TOOL_BIN_DIR": "bin", "PIPX_HOME": "pipx"}
    kept |= {"PIPX_BIN_DIR": "pipx-bin", "PIP_CACHE_DIR": "pip"}
    places = {name: str(home / folder) for name, folder in kept.items()}
    return {"PIP_INDEX_URL": index, "UV_DEFAULT_INDEX": index, "UV_PYTHON_DOWNLOADS": "never", **places}


def _configured() -> str:
    """Return the index that pip is told to use; empty if that is its own default, which is pypiserver's too."""
    for name in "global.index-url", ":env:.index-url":
        command = [environments.pip_python(), "-m", "pip", "config", "get", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    return os.environ.get("PIP_INDEX_URL", "")


def _answers(address: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(address, timeout=10) as answer:
        return bool(answer.status == 200)
    return False

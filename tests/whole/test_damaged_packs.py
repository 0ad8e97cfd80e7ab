"""Packs that are damaged, or made to do harm: each command gives one error that names a file of the pack, or is right.

A longer run: `python -m pytest tests/whole/test_damaged_packs.py` with UNHANG_DAMAGES=2000.
"""

import json
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import cli, packed, widgets
from support.packed import ID

NUMBER = int(os.environ.get("UNHANG_DAMAGES", "40"))
SPARSE = 10 << 40
"""Bytes of a file without any; some file systems have fewer."""


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """End a command that waits for ever: it is one that opens a pipe."""

    def stop(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cli.unpack_targets(tmp_path_factory.mktemp("site"), ("verl", "0.7.1"))


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    folder = packed.pack(tmp_path / "acme")
    (folder / "upstreams").mkdir()
    about = {"import-name": "widgets", "distribution": "widgets", "marks": ["__init__.py"], "version": {}}
    (folder / "upstreams" / "widgets.json").write_text(json.dumps({"schema": 1, **about}))
    return folder


def sparse(path: Path, _: random.Random) -> None:
    size = SPARSE
    while size:
        try:
            with path.open("wb") as file:
                file.truncate(size)
            return
        except OSError:  # larger than this file system has files
            size >>= 2


def a_socket(path: Path, _: random.Random) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def in_place(make: Callable[[Path], object]) -> Callable[[Path, random.Random], None]:
    def damage(path: Path, _: random.Random) -> None:
        path.unlink()
        make(path)

    return damage


def edited(change: Callable[[bytes, random.Random], bytes]) -> Callable[[Path, random.Random], None]:
    def damage(path: Path, dice: random.Random) -> None:
        path.write_bytes(change(path.read_bytes(), dice))

    return damage


def flipped(data: bytes, dice: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(dice.randrange(1, 4)):
        made[dice.randrange(len(made))] ^= 1 << dice.randrange(8)
    return bytes(made)


def without_middle(data: bytes, dice: random.Random) -> bytes:
    first, last = sorted(dice.sample(range(len(data)), 2))
    return data[:first] + data[last:]


def with_value(data: bytes, dice: random.Random) -> bytes:
    """Return a file with something in the place of a value, if it is JSON."""
    text = data.decode()
    colons = [at for at, letter in enumerate(text) if letter == ":"] or [0]
    at = dice.choice(colons) + 1
    values = [
        "NaN", "1e999", "-1", "1" * 5000, '"\\ud800"', "null", '"\\u0000"', "[" * 3000 + "]" * 3000, "{}", '"x" * 9',
        '{"a": 1, "a": 2}', '"::error::x"', '"\\u001b[2J"',
    ]  # fmt: skip
    return (text[:at] + " " + dice.choice(values) + "," + text[at:]).encode()


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "cut": edited(lambda data, dice: data[: dice.randrange(len(data))]),
    "cut and closed again": edited(lambda data, dice: data[: dice.randrange(len(data))] + b"}}"),
    "without its middle": edited(without_middle),
    "flipped": edited(flipped),
    "another value": edited(with_value),
    "empty": edited(lambda data, dice: b""),
    "NUL bytes": edited(lambda data, dice: bytes(len(data))),
    "nested": edited(lambda data, dice: b'{"a":' * 100_000),
    "nested code": edited(lambda data, dice: b"x = " + b"(" * 5000 + b")" * 5000),
    "raises": edited(lambda data, dice: b"class E(BaseException):\n    def __str__(self):\n        1 / 0\nraise E"),
    "ends": edited(lambda data, dice: b"raise SystemExit(0)"),
    "not UTF-8": edited(lambda data, dice: data.replace(b"e", b"\xff", 1)),
    "a pipe": in_place(os.mkfifo),
    "a folder": in_place(Path.mkdir),
    "a device": in_place(lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": in_place(lambda path: path.symlink_to(path)),
    "a link to nothing": in_place(lambda path: path.symlink_to("nowhere")),
    "gone": in_place(lambda path: None),
    "a socket": a_socket,
    "huge": sparse,
}


def commands(acme: Path, site: Path, out: Path) -> list[tuple[str, ...]]:
    of, here = ("--pack", str(acme)), ("--target", str(site), "--fix", ID)
    begun = ("--upstream", "widgets==1.0", "--from-patch", str(out / "my.patch"), "--target", str(out / "site"))
    return [
        ("check", *here, *of), ("check", *here, *of, "--output-format", "json"), ("list", *of), ("list", "scale", *of),
        ("explain", ID, *of), ("explain", "bad-pack", *of), ("apply", "--dry-run", *here, *of), ("diff", *here, *of),
        ("matrix", "--fix", ID, *of), ("completion", "bash", *of), ("overlay", str(out / "overlay"), *here, *of),
        ("pack", "build", str(acme), "-o", str(out / "dist")), ("new", "another-fix", *begun, *of),
    ]  # fmt: skip


def files(acme: Path) -> list[Path]:
    return sorted(path for path in acme.rglob("*") if path.is_file())


def refused(ran: cli.Ran, acme: Path) -> bool:
    """Return whether a command named the pack as what is wrong, in one line."""
    lines = [line for line in (ran.out + ran.err).splitlines() if "error[" in line]
    return ran.code == 2 and len(lines) == 1 and ("error[bad-pack]" in lines[0] or "error[no-pack]" in lines[0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUMBER))
def test_a_damaged_pack_is_refused_by_name_or_the_answer_is_right(
    seed: int, acme: Path, site: Path, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    names = sorted(DAMAGES)
    what = names[seed % len(names)]
    path = files(acme)[(seed // len(names) + dice.randrange(99)) % len(files(acme))]
    widgets.site(tmp_path)
    (tmp_path / "my.patch").write_text(widgets.diff(widgets.PATCHED))
    before = cli.tree(site)
    DAMAGES[what](path, dice)
    for command in dice.sample(commands(acme, site, tmp_path), 4):
        signal.alarm(60)
        ran = cli.called_with_all(*command)
        shown = what, str(path.relative_to(acme)), command[:1], ran
        assert "Traceback" not in ran.out + ran.err, shown
        assert "a bug in unhang" not in ran.out + ran.err, shown
        if "json" in command and ran.code == 2:
            assert ran.json["error"]["code"] in ("bad-pack", "no-pack"), shown
        elif ran.code == 2 and "error[" in ran.err:
            assert refused(ran, acme) or command[0] == "new", shown
        else:
            assert ran.code in (0, 1), shown
        assert cli.tree(site) == before, shown


def test_every_file_of_facts_is_read_whole(acme: Path, site: Path) -> None:
    """Wherever it is cut, also between two entries, and with its end put right."""
    path = acme / "compat" / "data" / f"{ID}.json"
    data = path.read_bytes()
    for number in range(40):
        at = len(data) * number // 40
        for end in (b"", b"}", b"}}", b'"}}'):
            path.write_bytes(data[:at] + end)
            ran = cli.called_with_all("check", "--target", site, "--fix", ID, "--pack", acme)
            assert refused(ran, acme), (at, end, ran)
            assert str(path) in ran.err


def test_facts_of_releases_of_an_upstream_that_they_do_not_name_are_refused(acme: Path) -> None:
    path = acme / "compat" / "data" / f"{ID}.json"
    facts = json.loads(path.read_text())
    facts["targets"] = {"other": next(iter(facts["targets"].values()))}
    path.write_text(json.dumps(facts))
    ran = cli.called_with_all("matrix", "--fix", ID, "--pack", acme)
    assert refused(ran, acme), ran

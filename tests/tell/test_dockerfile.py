from pathlib import Path

from support import cli
from support import made_images as make

VERL = make.release("verl", "0.7.1")


def end(folder: Path, *entries: make.Entry) -> list[str]:
    """Return the last lines of the report on an image with these files, about one fix."""
    path = make.saved(folder / "a.tar", [make.base(), make.tar(*VERL, *entries)])
    return cli.called("check", "--image", path, "--fix", "mtp-cp-deadlock").out.splitlines()[-2:]


def test_each_environment_that_needs_a_fix_has_its_command(tmp_path: Path) -> None:
    other = make.release("verl", "0.7.1", "home/a/lib/python3.12/site-packages")
    first, last = end(tmp_path, *make.venv("home/a"), *other)
    assert "next, in the Dockerfile, below the line that installs them:" in first
    commands = [f"unhang apply --python {place}/bin/python --fix mtp-cp-deadlock" for place in ("/opt/venv", "/home/a")]
    assert last == f"  RUN pip install --no-cache-dir unhang && {' && '.join(commands)} 2>&1"


def test_an_unknown_shape_is_looked_at_in_a_container(tmp_path: Path) -> None:
    engine = dict(VERL)[make.ENGINE]
    assert isinstance(engine, bytes)
    edited = engine.replace(b"def forward_backward_batch(self,", b"def forward_backward_batch(self, more,")
    first, last = end(tmp_path, (make.ENGINE, edited))
    assert first.endswith("next, in a container of the image:")
    assert last == "  unhang diff --python /opt/venv/bin/python --unknown --fix mtp-cp-deadlock"


def test_what_is_settled_needs_no_line(tmp_path: Path) -> None:
    _, last = end(tmp_path, (make.ENGINE, b""))
    assert "Dockerfile" not in last

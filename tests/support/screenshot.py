"""Writes docs/terminal.svg: what a terminal shows of `unhang check` and `unhang apply` on the published verl 0.7.1."""

import html
import io
import re
import tempfile
from pathlib import Path

from support import cli, ptys

PICTURE = Path(__file__).parents[2] / "docs" / "terminal.svg"
COLUMNS = 100
FIXES = ("--fix", "mtp-cp-deadlock", "--fix", "fsdp2-buffer-order")  # so that a new fix changes no picture


def shown() -> str:
    """Return what the terminal got, with its colours; the temporary folder is named /job in it."""
    with tempfile.TemporaryDirectory(prefix="unhang-", dir="/tmp") as name:  # a longer path would wrap lines
        folder = Path(name).resolve()
        cli.unpack_targets(folder / "site-packages", ("verl", "0.7.1"))
        texts = []
        for command in "check", "apply":
            line = [command, *FIXES, "--target", "site-packages"]
            _, text = ptys.python("-m", "unhang", *line, columns=COLUMNS, cwd=folder)
            texts.append(f"$ unhang {' '.join(line)}\n{text}")
        return "\n".join(texts).replace(str(folder), "/job")


def drawn(text: str) -> str:
    """Return the picture of a terminal with this text, without the fonts that it would load from elsewhere."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(text))
    return re.sub(r"@font-face {.*?}", "", console.export_svg(title="unhang"), flags=re.DOTALL)


def words(picture: str) -> list[str]:
    """Return the words that a picture shows, without its title."""
    return html.unescape(" ".join(re.findall(r"clip-path=\"url\(#[^)]*-line-\d+\)\">([^<]*)<", picture))).split()


if __name__ == "__main__":
    PICTURE.write_text(drawn(shown()), encoding="utf-8")
    print(f"wrote {PICTURE}")

"""``unhang check --image``: what is needed in an image, of which nothing is run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.cli.check_command import told
from unhang.cli.requests import request
from unhang.errors import UnhangError
from unhang.prove.ranks import tidy
from unhang.survey import in_image
from unhang.tell import dockerfile

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Check an image; return the exit code as ``check`` does."""
    wanted = request(options)._replace(as_imported=True)
    if wanted.script:
        hint = "name the folder of the script with --source"
        raise UnhangError("bad-option", "--script does not go with --image", hint=hint)
    with tidy.folder("unhang-image-") as (folder, _):
        seen = in_image.survey(wanted, folder)
    return told(options, wanted, seen, dockerfile.summary)

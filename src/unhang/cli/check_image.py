"""``unhang check --image``: what is needed in an image, of which nothing is run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.prove.ranks import tidy
from unhang.survey import in_image

if TYPE_CHECKING:
    from unhang.records import Request
    from unhang.survey.verdicts import Survey


def surveyed(wanted: Request) -> Survey:
    """Return the survey of an image. Raises UnhangError ``bad-option``, and as ``in_image.survey``; and OSError."""
    if wanted.script:
        hint = "name the folder of the script with --source"
        raise UnhangError("bad-option", "--script does not go with --image", hint=hint)
    with tidy.folder("unhang-image-") as (folder, _):
        return in_image.survey(wanted, folder)

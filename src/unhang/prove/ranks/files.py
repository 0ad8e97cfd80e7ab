"""Files of torch in memory, because a rank of a scene may write none."""

from __future__ import annotations

import contextlib
import io
import os
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def saved(state: Any) -> bytes:
    """Return the content of a file in which ``torch.save`` has put this."""
    import torch

    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


@contextlib.contextmanager
def there(files: Mapping[str, bytes]) -> Iterator[None]:
    """Let these files alone, by their paths, be there, and ``torch.load`` read them."""
    import torch

    load = torch.load
    with (
        patch.object(torch, "load", lambda path, **options: load(io.BytesIO(files[str(path)]), **options)),
        patch.object(os.path, "exists", files.__contains__),
    ):
        yield

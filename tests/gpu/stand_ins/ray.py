"""Takes the place of Ray, which is too large to carry: nothing of it runs in a scene."""

from unhang_prove import missing  # type: ignore[import-not-found]  # the name of ``unhang.prove`` in the target's interpreter

missing.stand_in("ray")

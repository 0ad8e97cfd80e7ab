"""What scenes show of the functions made up in ``fake_index``, told by their text: no torch runs, in no release."""

from collections.abc import Sequence

from unhang.compat.endstates.compare import FAILS, Row
from unhang.compat.endstates.endstate import Source


def run(fix: str, before: Source, after: Source | None, through: Sequence[str] = ()) -> Row:
    """Return a row as ``scenes.run`` does."""
    problems = [f"{FAILS} one setting: {why}" for why in _wrong(before.text)]
    return Row(["number"], 1, 1 - len(problems), 0, len(problems), 0, problems)


def _wrong(text: str) -> list[str]:
    if "get_megatron_mtp_loss" not in text:
        return []
    if "data" not in text:
        return ["crashed: rank 0 raised TypeError"]
    if "mtp.enable" not in text:
        return ["rank 0 of 1 joins 1 reductions"]
    return [] if "is_pipeline_last_stage(ignore_virtual=True)" in text else ["hung: rank 0 waits in all_reduce"]

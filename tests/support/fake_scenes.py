"""What scenes show of the functions made up in ``fake_index``, told by their text: no torch runs, in no release."""

from collections.abc import Mapping

from unhang.judge import rows, scene
from unhang.judge.rows import Row, Source


def run(fix: str, before: Source, after: Source | None) -> Row:
    """Return a row as ``trees.run`` does, of two settings: one with the defect, and one without it."""
    names = [next(case.name for case in scene.of(fix).GRID if case.is_control is control) for control in (False, True)]
    texts = {rows.BEFORE: before.text, **({rows.AFTER: after.text} if after else {})}
    answer = {name: {"wrong": _wrong(text, *names), "ran": 2, "open": []} for name, text in texts.items()}
    return rows.row(fix, before, after, answer)


def _wrong(text: str, defect: str, control: str) -> Mapping[str, str]:
    if "def initialize_model_parallel" in text:
        if "all_reduce" not in text:
            return {defect: "0 collectives at initialization"}
        return {control: "1 collectives at initialization"} if "if True" in text else {}
    if "get_megatron_mtp_loss" not in text:
        return {}
    if "data" not in text:
        return {control: "crashed: rank 0 raised TypeError"}
    if "mtp.enable" not in text:
        return {control: "rank 0 of 1 joins 1 reductions"}
    is_right = "is_pipeline_last_stage(ignore_virtual=True)" in text
    return {} if is_right else {control: "hung: rank 0 waits in all_reduce"}

"""ms-swift: compute the metric of `swift infer` from all rows, which the master has, without an all-reduce.

No pull request or issue was found upstream.
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, expression, mentioned, once, replaced_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_COMPUTED = "METRIC.compute()['value'] of a MeanMetric"


class CalcMetric(Codemod):
    """Divide the accuracy's own sums: only the master gets here, and it has read the rows of all ranks.

    Before::

        def _calc_metric(self):
            if not is_master():
                return
            mean_metric = MeanMetric()
            mean_metric.update(self.read())
            res = {'acc': mean_metric.compute()['value']}
            logger.info(res)

    After::

        def _calc_metric(self):
            if not is_master():
                return
            mean_metric = MeanMetric()
            mean_metric.update(self.read())
            # unhang infer-metric-rank0: the master alone is here, with all rows, so it must not all-reduce
            res = {'acc': mean_metric.state / mean_metric.count if mean_metric.count else mean_metric.nan_value}
            logger.info(res)
    """

    def plan(self, function: Function) -> list[Edit]:
        comment = "# unhang infer-metric-rank0: the master alone is here, with all rows, so it must not all-reduce"
        return [_divided(function, comment)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"MeanMetric"})


class ComputeRougeBleu(Codemod):
    """Divide the scores' own sums. Trainers call this on every rank with the same rows, and so with the same means.

    Before::

        def compute_rouge_bleu(preds, labels):
            score_dict = scored(MeanMetric, preds, labels)
            return {k: round(v.compute()['value'] * 100, 6) for k, v in score_dict.items()}

    After::

        def compute_rouge_bleu(preds, labels):
            score_dict = scored(MeanMetric, preds, labels)
            # unhang infer-metric-rank0: swift infer calls this on the master alone, so it must not all-reduce
            return {k: round((v.state / v.count if v.count else v.nan_value) * 100, 6) for k, v in score_dict.items()}
    """

    def plan(self, function: Function) -> list[Edit]:
        comment = "# unhang infer-metric-rank0: swift infer calls this on the master alone, so it must not all-reduce"
        return [_divided(function, comment)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"MeanMetric"})


def _divided(function: Function, comment: str) -> Edit:
    """Return the edit that divides the sums of the only metric whose reduced value is taken. Raises AnchorError."""
    reduced = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "compute"
    ]
    call = once(reduced, _COMPUTED)
    values = [node for node in ast.walk(function) if isinstance(node, ast.Subscript) and node.value is call]
    metric = expression(call)[: -len(".compute()")]
    if not metric.isidentifier() or list(map(expression, values)) != [f"{metric}.compute()['value']"]:
        raise AnchorError(_COMPUTED)
    if "MeanMetric" not in mentioned(function):
        raise AnchorError("MeanMetric")
    own = f"{metric}.state / {metric}.count if {metric}.count else {metric}.nan_value"
    dicts = (node for node in ast.walk(function) if isinstance(node, ast.Dict))
    stands_alone = any(value is values[0] for node in dicts for value in node.values)
    return replaced_by(function, values[0], own if stands_alone else f"({own})", comment)


CODEMODS = {"SwiftInfer._calc_metric": CalcMetric(), "compute_rouge_bleu": ComputeRougeBleu()}

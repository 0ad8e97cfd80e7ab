"""ms-swift: compute the metric of `swift infer` from all rows, which the master has, without an all-reduce.

No pull request or issue was found upstream.
"""

from __future__ import annotations

import ast

from unhang.codemods.base import Codemod, expression, matches, once, replaced_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_ACC = "res = {'acc': mean_metric.compute()['value']}"
_SCORES = "return {k: round(v.compute()['value'] * 100, 6) for k, v in score_dict.items()}"
_COMPUTED = "{}.compute()['value']"
_OWN = "{0}.state / {0}.count if {0}.count else {0}.nan_value"


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
        return [replaced_by(function, _computed(function, _ACC, "mean_metric"), _OWN.format("mean_metric"), comment)]

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
        return [replaced_by(function, _computed(function, _SCORES, "v"), f"({_OWN.format('v')})", comment)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"MeanMetric"})


def _computed(function: Function, statement: str, metric: str) -> ast.expr:
    """Return the reduced value of a metric in the only statement of this form."""
    found = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and matches([node], statement)]
    inside = ast.walk(once(found, statement))
    return next(it for it in inside if isinstance(it, ast.expr) and expression(it) == _COMPUTED.format(metric))


CODEMODS = {"SwiftInfer._calc_metric": CalcMetric(), "compute_rouge_bleu": ComputeRougeBleu()}

"""resume-data-order: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "resume-data-order"
CASES = sources.cases(FIX, {"ms-swift": ["3.6.0", "4.5.2", "4.6.0"]})
REFUSED = sources.edits(
    CASES[0],
    [
        ("self.get_train_dataloader(", "self.get_dataloader(", "not found: self.get_train_dataloader"),
        ("return self.get_train_dataloader(", "return [] or self.get_train_dataloader(", "alone"),
        ("yield", "for _ in (1,): yield", "whose sampler is left as it is"),
    ],
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_NAMES, _SHARE = "('batch_sampler', 'sampler')", "rest.batch_sampler = getattr(dataloader, name)"
_TELL = ".set_epoch = dataloader.set_epoch"
BY_HAND: ByHand = {
    "nothing is shared": Sub(_SHARE, "pass"),
    "only the sampler of a batch": Sub(_NAMES, "('sampler',)"),
    "what skips, for what it skips": Sub("rest.batch_sampler =", "rest ="),
    "of the new loader": Sub("getattr(dataloader, name)", "getattr(resumed, name).batch_sampler"),
    "the order of all epochs": Sub(_SHARE, f"{_SHARE}\n                        rest.batch_sampler.set_epoch(0)"),
    "nothing is skipped": Sub(_SHARE, f"{_SHARE}\n                        rest.skip_batches = 0"),
    "the old loader": Sub("return resumed", "return dataloader"),
    "nothing is told of the epoch": Sub(f"resumed{_TELL}", "pass"),
    "the next epoch": Sub("dataloader.set_epoch", "lambda epoch: dataloader.set_epoch(epoch + 1)"),
    "not where an epoch has no rest": Sub("hasattr(rest, 'skip_batches')", "False"),
}
SEQUENCE: ByHand = {
    "only the sampler of batches": Sub(_NAMES, "('batch_sampler',)"),
    "nothing is shared": Sub(_SHARE, "pass"),
    "nothing is told of the epoch": Sub(f"new_dataloader{_TELL}", "pass"),
}
MUTANTS = [Mutants("ms-swift", ("4.5.2",), BY_HAND), Mutants("ms-swift", ("4.6.0",), SEQUENCE)]
_NEWEST = dict.fromkeys(("second-epoch", "second-epoch-2", "last-epoch"), ("passed", ""))
_EPOCH_ALONE, _SAMPLER_ALONE = without(r"rest\.batch_sampler = .*", "pass"), without(r"\w+\.set_epoch = .*", "pass")
PROOFS = [
    Proofs(
        "ms-swift",
        [
            Release("4.5.2", core=True),
            Release("4.6.0", core=True, otherwise=_NEWEST),
            *(Release(it) for it in ("4.4.0", "3.12.6")),
            Release("3.6.0", lacking={"sequence-parallel": "ms-swift 3.6 to 3.8 makes this loader elsewhere"}),
        ],
        {
            "half: the epoch alone": Other(_EPOCH_ALONE, ("second-epoch",), only=("4.5.2", "4.4.0")),
            "half: the sampler alone": Other(_SAMPLER_ALONE, ("transformers-5",), only=("4.4.0", "3.12.6")),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "get_train_dataloader|skip_batches", examples=40)

"""What is known of ``empty-expert-hang`` and the installed Transformer Engine, which a CPU cannot run. Pure."""

from __future__ import annotations

from collections.abc import Mapping

DISTRIBUTIONS = ("transformer-engine", "transformer-engine-torch", "transformer-engine-cu12", "transformer-engine-cu13")
_STAND_IN = "the proof's grouped linears are stand-ins: a CPU cannot show whether yours cuts the graph on zero rows"
_REPORTED = "the author of pull request 4851 reports that the Transformer Engine of that time passes without the fix"


def about(installed: Mapping[str, str]) -> str:
    """Return the remark for the versions of the installed ``DISTRIBUTIONS``."""
    version = next((installed[name] for name in DISTRIBUTIONS if name in installed), None)
    if version is None:
        return f"no Transformer Engine is installed (a vendor's replacement would not be found); {_STAND_IN}"
    remark = f"Transformer Engine {version} is installed; {_REPORTED}; {_STAND_IN}"
    if version.split(".")[:2] in (["2", "0"], ["2", "1"]):
        remark += "; it also fails when only the last expert is empty, which the fix does not cure"
    return remark

"""What is known of ``empty-expert-hang`` with the Transformer Engine that is installed: a CPU cannot run it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

DISTRIBUTIONS = ("transformer-engine", "transformer-engine-torch", "transformer-engine-cu12", "transformer-engine-cu13")
_STAND_IN = "the proof's grouped linears are stand-ins: whether yours cuts the graph on zero rows, a CPU cannot show"
_REPORTED = "pull request 4851's author reports that Transformer Engine current then passes without the fix"


def about(installed: Mapping[str, str]) -> str:
    """What to say, given the versions of those of ``DISTRIBUTIONS`` that are installed."""
    version = next((installed[name] for name in DISTRIBUTIONS if name in installed), None)
    if version is None:
        return f"no Transformer Engine is installed (a vendor's replacement would not be seen); {_STAND_IN}"
    told = f"Transformer Engine {version} is installed; {_REPORTED}; {_STAND_IN}"
    if version.split(".")[:2] in (["2", "0"], ["2", "1"]):
        told += "; this one also fails when the last expert alone is empty, which the fix does not cure"
    return told

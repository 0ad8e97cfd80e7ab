"""The topology of a user's job, from the sizes that the user gives. Pure."""

from __future__ import annotations

from unhang.errors import UnhangError
from unhang.prove.cases import Topology


def from_sizes(
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int = 1,
    vpp: int = 1,
    dp: int | None = None,
    world_size: int | None = None,
) -> Topology:
    """Return the topology of these sizes; ``dp`` defaults to what ``world_size`` leaves, or to 1 without one.

    Raises UnhangError ``bad-topology`` where the sizes do not fit each other.
    """
    model = tp * pp * cp
    if world_size is None:
        dp = dp or 1
    elif world_size % model:
        above = (world_size // model + 1) * model
        message = f"a world size of {world_size} is not divisible by TP x PP x CP = {tp} x {pp} x {cp} = {model}"
        raise UnhangError("bad-topology", message, hint=f"the next larger world size that is: {above}")
    elif dp is not None and dp * model != world_size:
        message = f"TP x PP x CP x DP = {dp * model}, but the world size is {world_size}"
        raise UnhangError("bad-topology", message, hint="leave out --dp or --world-size")
    else:
        dp = world_size // model
    if vpp > 1 and pp == 1:
        raise UnhangError("bad-topology", f"VPP = {vpp} needs PP > 1", hint="give --pp, or leave out --vpp")
    if tp * cp * dp % (ep * etp):
        experts = f"EP = {ep}" if etp == 1 else f"EP x ETP = {ep} x {etp} = {ep * etp}"
        message = f"a pipeline stage has TP x CP x DP = {tp * cp * dp} ranks, which {experts} does not divide"
        raise UnhangError("bad-topology", message, hint="give --dp or --world-size; ETP is 1 unless --etp is given")
    return Topology(tp=tp, pp=pp, cp=cp, dp=dp, ep=ep, etp=etp, vpp=vpp)

"""Ways to take the same steps: plain, stacked on a CPU, captured on a GPU; `make_engine` picks one for a group."""

import warnings

import torch

from greedy_ensembles.engines.captured import CapturedEngine, why_not_captured
from greedy_ensembles.engines.member import Member
from greedy_ensembles.engines.plain import PlainEngine, Plan, Step
from greedy_ensembles.engines.stacked import StackedEngine, why_not_stacked


def make_engine(members: list[Member], step: Step, plan: Plan) -> PlainEngine:
    """Return the fastest engine that can train these members; on a GPU, say in one line why it is not the fast one."""
    if len(members) > 1 and why_not_stacked(members, step) is None:
        return StackedEngine(members, step)
    if step.execution.device.type != "cuda":
        return PlainEngine(members, step)
    if (why := why_not_captured(step)) is not None:
        warnings.warn(f"trained step by step, since steps cannot be captured: {why}", stacklevel=2)
        return PlainEngine(members, step)
    try:
        return CapturedEngine(members, step, plan)
    except torch.OutOfMemoryError:
        if len(members) > 1:  # fewer at a time may fit
            raise
    warnings.warn("trained step by step, since memory does not hold a recorded step", stacklevel=2)
    return PlainEngine(members, step)

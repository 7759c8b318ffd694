"""Compiling networks before their step is recorded, where training is long enough to earn the time back."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from greedy_ensembles.engines.accelerate import BatchNormReLU, swaps
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import Problem

#: Compiling takes about 25 s on one H200, and saves at least 60 microseconds for each BatchNorm layer and step of a
#: member (VGG16BN 150, PreResNet164 100). A rule of counts, not of clocks: the same run always decides the same way.
_LAYER_STEPS = 400_000
#: A network of so many blocks of one kind is compiled block by block, which takes as long as one block.
_BLOCKS = 6


def worth_compiling(members: Sequence[Member], problem: Problem) -> bool:
    """Return whether compiling pays within its own cost over all of this training.

    It goes by BatchNorm layers, of which it was measured; networks that have none are recorded as they are.
    Over all of it also where a part is done already: what is resumed goes on in the same arithmetic.
    """
    recipe = problem.recipe
    if recipe.deterministic:
        return False
    layers = sum(isinstance(layer, _BatchNorm) for layer in members[0].model.modules())
    if problem.memory_format == torch.channels_last:  # then these are fused by hand
        layers -= sum(kind is BatchNormReLU for _, kind in swaps(members[0].model))
    steps = (problem.size - len(problem.earlier or ())) * recipe.epochs * len(problem.train) / recipe.batch_size
    return layers * steps >= _LAYER_STEPS


@contextmanager
def compiled(models: Sequence[nn.Module]) -> Iterator[None]:
    """Compile models inside the block, in which they are recorded; afterwards they are plain again."""
    regions = [region for model in models for region in _regions(model)]
    # Every member, and every shape of a block, is one more entry in the compiler's cache.
    with torch._dynamo.config.patch(cache_size_limit=64 * len(models)):
        try:
            for region in regions:
                region.compile(dynamic=False)
            yield
        finally:
            for region in regions:
                vars(region).pop("_compiled_call_impl", None)


def _regions(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that a network repeats, or all of it where it repeats none."""
    blocks = [m for m in model.modules() if next(m.children(), None) and not type(m).__module__.startswith("torch.")]
    kinds = Counter(type(block) for block in blocks)
    repeated = {kind for kind, count in kinds.items() if count >= _BLOCKS}
    blocks = [block for block in blocks if type(block) in repeated]
    inner = {id(part) for block in blocks for part in block.modules() if part is not block}
    return [block for block in blocks if id(block) not in inner] or [model]

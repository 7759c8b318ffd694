"""The p* set: drawn once per seed, of fixed size; every step takes some of its samples by index."""

import torch
from torch import Tensor

from greedy_ensembles.inputs import as_stored
from greedy_ensembles.method import Bank
from greedy_ensembles.method.weighting import Weighting
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.seeds import WEIGHTING_BATCH, WEIGHTING_SET, generator


class WeightingSet:
    """Samples of p*, as the data is stored, the bank of members' outputs on them, and which of them a step uses."""

    def __init__(self, problem: Problem, weighting: Weighting) -> None:
        self._seed = problem.seed
        self.batch_size = problem.recipe.weighting_batch_size or problem.recipe.batch_size
        count = weighting_samples(problem)
        samples = weighting.sample(count, generator(WEIGHTING_SET, problem.seed))
        if len(samples) != count or not all(bool(torch.isfinite(part).all()) for part in samples.split(1024)):
            raise ValueError(f"weighting must draw {count} finite samples when asked to; NaN, infinity or fewer came")
        self.samples = as_stored(samples, problem.examples.dtype).to(problem.device)
        self.bank = Bank(problem.size, count, problem.classes, problem.device)

    def indices(self, step: int) -> Tensor:
        """Return the samples of a step, drawn with replacement: the same for every member and schedule."""
        chosen = generator(WEIGHTING_BATCH, self._seed, step)
        return torch.randint(len(self.samples), (self.batch_size,), generator=chosen).to(self.samples.device)


def weighting_samples(problem: Problem) -> int:
    """Return the size of the p* set."""
    return problem.recipe.weighting_samples or len(problem.train)

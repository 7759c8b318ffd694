import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.training.problem import pose
from greedy_ensembles.training.weighting_set import WeightingSet


def posed(x, y, model, **changes):
    arguments = {
        "size": 2, "method": "greedy", "strength": 1.0, "weighting": None, "distance": "probabilities", "recipe": None,
        "seed": 0, "validation": 0.1, "earlier": None, "schedule": "sequential", "device": "cpu",
    }  # fmt: skip
    return pose(model, (x, y), **{**arguments, **changes})


def drawn(problem):
    return WeightingSet(problem, problem.weighting)


def test_as_many_samples_as_training_examples_from_the_seed_alone(blobs, make_model):
    sets = [drawn(posed(*blobs, make_model, seed=seed)).samples for seed in (0, 0, 1)]
    assert len(sets[0]) == 54  # 60 less a tenth
    assert torch.equal(sets[0], sets[1])
    assert not torch.equal(sets[0], sets[2])
    recipe = ge.Recipe(weighting_samples=7, weighting_batch_size=3)
    small = drawn(posed(*blobs, make_model, recipe=recipe))
    assert len(small.samples) == 7
    assert len(small.indices(0)) == 3


def test_all_samples_are_used_equally(blobs, make_model):
    weighting = drawn(posed(*blobs, make_model))
    counts = sum(torch.bincount(weighting.indices(step), minlength=54) for step in range(2000))
    assert counts.sum() == 2000 * 128
    assert counts.float().std() < 2 * counts.float().mean().sqrt()


def test_samples_that_are_not_finite_or_too_few_are_refused(blobs, make_model):
    class Odd:
        def __init__(self, change):
            self.change = change

        def sample(self, n, generator):
            samples = torch.randn(n, 2, generator=generator)
            return samples if n == 2 else self.change(samples)

    for change in (lambda s: s[:-1], lambda s: s.index_fill(0, torch.tensor([5]), float("nan"))):
        problem = posed(*blobs, make_model, weighting=Odd(change))
        with pytest.raises(ValueError, match="weighting must draw 54 finite samples"):
            WeightingSet(problem, problem.weighting)


def test_default_p_star_of_byte_images_is_wrapped():
    x = torch.randint(0, 256, (40, 1, 4, 4), dtype=torch.uint8)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    import copy

    problem = posed(x, torch.arange(40) % 2, lambda: copy.deepcopy(model))
    assert problem.weighting.overflow == "wrap"
    assert drawn(problem).samples.dtype == torch.uint8

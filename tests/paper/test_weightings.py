import numpy as np
import pytest
import torch

from greedy_ensembles.data import ImageSet
from greedy_ensembles.paper.weightings import WEIGHTINGS, named_weighting, split_of

DATA = ImageSet(np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 1, 28, 28), None, "data")


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_samples_have_the_shape_of_the_data(name):
    samples = named_weighting(name, DATA).sample(50, torch.Generator().manual_seed(0))
    assert samples.shape == (50, 1, 28, 28)
    inside = bool(((samples >= 0) & (samples <= 255)).all())
    assert inside == (name != "none")


def test_images_of_another_set_are_brought_to_the_shape_of_the_data(tmp_path, write_mnist):
    write_mnist(tmp_path / "mnist", "train", 10, 0)
    write_mnist(tmp_path / "mnist", "t10k", 5, 0)
    colour = DATA.with_channels(3).resized(32)
    for name, count in (("mnist", 10), ("mnist/test", 5)):
        x = named_weighting(name, colour, tmp_path).x
        assert tuple(x.shape) == (count, 3, 32, 32)


def test_a_name_that_is_none():
    with pytest.raises(ValueError, match="--weighting must be one of"):
        split_of("wrapped")

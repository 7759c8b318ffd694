import pytest
import torch
from torch.nn.functional import pad

from greedy_ensembles.training.recipe import flip_crop, flip_crop_paper


def all_versions(image, padding, offsets):
    """Every flip and crop of one image, made one at a time: first the flip, then the crop."""
    height, width = image.shape[1:]
    versions = []
    for start in (image, image.flip(2)):
        padded = pad(start[None], [padding] * 4, mode="reflect")[0]
        versions += [padded[:, y : y + height, x : x + width] for y in range(offsets) for x in range(offsets)]
    return torch.stack(versions)


@pytest.mark.parametrize(("augment", "padding", "offsets"), [(flip_crop, 4, 9), (flip_crop_paper, 2, 4)])
def test_each_result_is_one_of_the_crops_and_all_of_them_occur_equally_often(augment, padding, offsets):
    torch.manual_seed(0)
    image = torch.rand(2, 12, 10)
    versions = all_versions(image, padding, offsets)
    results = augment(image.expand(5000, 2, 12, 10))
    assert results.shape == (5000, 2, 12, 10)
    which = torch.stack([(results == version).flatten(1).all(dim=1) for version in versions], dim=1)
    assert (which.sum(dim=1) == 1).all()
    counts, expected = which.sum(dim=0), 5000 / len(versions)
    degrees = len(versions) - 1
    assert ((counts - expected) ** 2 / expected).sum() < degrees + 5 * (2 * degrees) ** 0.5


def test_the_papers_crops_shift_by_two_back_to_one_ahead():
    torch.manual_seed(0)
    place = torch.arange(32.0).expand(2000, 1, 32, 32)  # each pixel knows its column
    middle = flip_crop_paper(place)[:, 0, 16, 8:24]
    straight = middle[:, 1] > middle[:, 0]
    flipped = 31 - middle[~straight]
    shifts = torch.cat([middle[straight], flipped]) - torch.arange(8.0, 24)
    assert shifts.unique().tolist() == [-2, -1, 0, 1]


def test_images_of_a_batch_are_moved_independently_and_not_mixed():
    torch.manual_seed(1)
    images = torch.arange(64.0)[:, None, None, None] + torch.rand(64, 1, 8, 8) * 0.5
    results = flip_crop(images)
    assert torch.equal(results.floor().flatten(1).unique(dim=1), torch.arange(64.0)[:, None])
    again = flip_crop(images[:1].expand(64, 1, 8, 8))
    assert len(again.flatten(1).unique(dim=0)) > 20

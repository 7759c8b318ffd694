import torch
from torch.nn.functional import pad

from greedy_ensembles.training.recipe import flip_crop


def all_versions(image):
    """Every flip and crop of one image, made one at a time."""
    height, width = image.shape[1:]
    padded = pad(image[None], [4, 4, 4, 4], mode="reflect")[0]
    crops = [padded[:, top : top + height, left : left + width] for top in range(9) for left in range(9)]
    return torch.stack([*crops, *(crop.flip(2) for crop in crops)])


def test_each_result_is_one_of_the_crops_and_all_of_them_occur():
    torch.manual_seed(0)
    image = torch.rand(3, 9, 7)
    versions = all_versions(image)
    results = flip_crop(image.expand(5000, 3, 9, 7))
    assert results.shape == (5000, 3, 9, 7)
    which = (results[:, None] == versions[None]).flatten(2).all(dim=2)
    assert which.any(dim=1).all()
    counts = which.sum(dim=0)
    assert counts.min() > 0  # 162 versions, about 31 times each
    assert counts.max() < 80


def test_images_of_a_batch_are_moved_independently_and_not_mixed():
    torch.manual_seed(1)
    images = torch.arange(64.0)[:, None, None, None] + torch.rand(64, 1, 8, 8) * 0.5
    results = flip_crop(images)
    assert torch.equal(results.floor().flatten(1).unique(dim=1), torch.arange(64.0)[:, None])
    again = flip_crop(images[:1].expand(64, 1, 8, 8))
    assert len(again.flatten(1).unique(dim=0)) > 20

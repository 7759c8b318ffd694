import numpy as np
import pytest
import torch

from greedy_ensembles.metrics.scores import sort_scores, to_scores


def test_both_come_in_the_wider_precision():
    inside, outside = to_scores(np.ones(2, np.float16), torch.ones(3, dtype=torch.float64))
    assert inside.dtype == outside.dtype == torch.float64
    inside, outside = to_scores(torch.ones(2).half(), torch.ones(3).half())
    assert inside.dtype == outside.dtype == torch.float32


def test_the_second_is_the_one_named():
    with pytest.raises(ValueError, match="ood_scores must be finite, got 2 that"):
        to_scores(np.ones(3), np.array([np.nan, 1.0, np.inf]))


def test_sorting_leaves_the_scores_alone():
    scores = torch.tensor([3.0, 1.0, 2.0])
    assert sort_scores(scores).tolist() == [1, 2, 3]
    assert scores.tolist() == [3, 1, 2]

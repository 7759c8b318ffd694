import numpy as np
import pytest
import torch

from greedy_ensembles.metrics.values import to_tensor


def test_a_tensor_stays_itself_and_an_array_shares_its_memory():
    tensor, array = torch.ones(3), np.ones(3)
    assert to_tensor("x", tensor) is tensor
    to_tensor("x", array)[0] = 7
    assert array[0] == 7


def test_arrays_that_torch_refuses_or_warns_of():
    values = np.array([3.0, 1.0, 2.0])
    frozen = values.copy()
    frozen.flags.writeable = False
    for array in (frozen, values[::-1][::-1], values.astype(">f8"), np.asfortranarray(values)):
        assert to_tensor("x", array).tolist() == [3, 1, 2]
    assert to_tensor("x", values[::-1]).tolist() == [2, 1, 3]
    assert to_tensor("x", np.broadcast_to(1.0, 3)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("values", [np.array(["a"]), np.array([None]), np.ones(2, dtype=np.longdouble)])
def test_numbers_that_torch_does_not_have(values):
    with pytest.raises(TypeError, match=rf"x must hold numbers .*torch.* got {values.dtype}$"):
        to_tensor("x", values)

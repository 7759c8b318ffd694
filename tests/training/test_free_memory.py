import pytest
import torch
from torch.utils.data import TensorDataset

from greedy_ensembles.training import free_memory
from greedy_ensembles.training.examples import DatasetExamples, as_examples
from greedy_ensembles.training.free_memory import available_memory, check_examples

GPU = torch.device("cuda")


def test_a_cpu_has_some():
    assert available_memory(torch.device("cpu")) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_examples_that_a_gpu_cannot_hold_are_refused_before_they_are_moved(monkeypatch, dtype):
    examples = as_examples((torch.zeros(100, 3, dtype=dtype), torch.arange(100) % 2))
    needed = 100 * 3 * dtype.itemsize + 100 * 8
    monkeypatch.setattr(free_memory, "available_memory", lambda device: needed)
    check_examples(examples, GPU)
    monkeypatch.setattr(free_memory, "available_memory", lambda device: needed - 1)
    with pytest.raises(ValueError, match=r"100 examples need 0\.0 GiB, and 0\.0 GiB are free on cuda") as error:
        check_examples(examples, GPU)
    assert ("uint8" in str(error.value)) == (dtype == torch.float32)
    check_examples(examples, torch.device("cpu"))  # where they are already


def test_a_dataset_is_not_moved_and_may_be_of_any_size(monkeypatch):
    class Items(TensorDataset):
        pass

    examples = as_examples(Items(torch.zeros(10, 3), torch.arange(10) % 2))
    assert isinstance(examples, DatasetExamples)
    monkeypatch.setattr(free_memory, "available_memory", lambda device: 0)
    check_examples(examples, GPU)

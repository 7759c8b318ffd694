"""Where kernels of our own can run: asked on any machine, of tensors that say they are on a GPU."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from greedy_ensembles.engines import norm as kernels


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(kernels, "has_kernels", lambda: True)
    with FakeTensorMode():
        return torch.empty(2, 3, device="cuda")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch about tracing
def test_on_a_gpu_and_not_inside_what_stands_for_other_tensors(on_a_gpu):
    assert kernels.can_launch(on_a_gpu)
    assert not kernels.can_launch(torch.empty(2, 3))
    found = []
    torch.vmap(lambda x: (found.append(kernels.can_launch(on_a_gpu)), x)[1])(torch.ones(2))
    torch.jit.trace(lambda x: (found.append(kernels.can_launch(on_a_gpu)), x + 1)[1], torch.ones(2), check_trace=False)
    assert found == [False, False]
    assert kernels.can_launch(on_a_gpu)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, for which Triton works")
def test_a_compiler_that_does_not_work_is_none():
    pytest.importorskip("triton", reason="Triton is not installed")
    with pytest.warns(UserWarning, match=r"Triton .*not work .*\(.+\).* PyTorch's .*slower"):
        assert not kernels.has_kernels.__wrapped__()


def test_second_derivatives_are_refused(on_a_gpu):
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        kernels.refuse_second_derivatives(on_a_gpu)
    with torch.no_grad():
        kernels.refuse_second_derivatives(on_a_gpu)
    kernels.refuse_second_derivatives(torch.empty(1))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_second_derivatives_of_a_network_are_refused_on_a_gpu_and_right_in_the_usual_layout():
    from greedy_ensembles.engines.accelerate import accelerate
    from greedy_ensembles.models import VGG16BN

    torch.manual_seed(0)
    model = VGG16BN().cuda().train()
    x = torch.rand(4, 3, 32, 32, device="cuda", requires_grad=True)
    last = x.contiguous(memory_format=torch.channels_last)
    with accelerate(model), pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(model(last).sum(), x, create_graph=True)
    with accelerate(model):
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    assert gradient.requires_grad

"""Outputs of members on a batch: of one, also in exported graphs; of all, one after another or as one CUDA graph.

On a GPU a loop over small members would wait for kernels to be launched. So the passes of all members are recorded
once, side by side, and replayed from then on.
"""

import difflib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from greedy_ensembles.engines.accelerate import accelerate
from greedy_ensembles.engines.execution import tf32_in_convolutions, tf32_settings
from greedy_ensembles.engines.graphs import record, warm_up
from greedy_ensembles.heads import Headed, once
from greedy_ensembles.inputs import (
    SOFTMAX,
    Inputs,
    Normalize,
    are_probabilities,
    as_logits,
    device_of,
    dtype_of,
    each,
    length,
    logits_of,
    move,
    to_model,
)
from greedy_ensembles.labels import bernoulli, log_bernoulli

#: What is computed with a member on a batch as the member takes it (`to_model`), which it may write to.
Statement = Callable[[nn.Module, Inputs], Tensor]

#: What is said of a member whose outputs may be those of a sigmoid.
SIGMOID = "returns numbers from 0 to 1 where logits are expected; if it ends in a sigmoid, leave it out"
#: Full batches from which on recording, which takes about as long as predicting two of them, pays.
WORTH_CAPTURING = 3
_FEW, _SEVERAL = 4, 16  # rows by which logits are told from probabilities of all classes, and of one
_checked: WeakSet[nn.Module] = WeakSet()  # members whose outputs were looked at for that
_STREAMS = 4  # for members side by side: each of them nearly fills a GPU


def probabilities(member: nn.Module, x: Inputs) -> Tensor:
    """Return a member's class probabilities (n, classes), in double precision where the member is, else in single."""
    return logits(member, x).softmax(dim=1)


def log_probabilities(member: nn.Module, x: Inputs) -> Tensor:
    """Return the logarithms of `probabilities`, of which none is lost to rounding."""
    return logits(member, x).log_softmax(dim=1)


def label_probabilities(member: nn.Module, x: Inputs) -> Tensor:
    """Return a member's probabilities of independent labels, (n, labels, 2)."""
    return bernoulli(logits(member, x, of_labels=True))


def label_log_probabilities(member: nn.Module, x: Inputs) -> Tensor:
    """Return the logarithms of `label_probabilities`."""
    return log_bernoulli(logits(member, x, of_labels=True))


def logits(member: nn.Module, x: Inputs, of_labels: bool = False) -> Tensor:
    """Return a member's logits (n, classes), in single precision at least, or refuse what can be none."""
    found, exporting = logits_of(member, x), torch.compiler.is_compiling()
    proper = isinstance(found, Tensor) and found.ndim in (1, 2) and 0 not in found.shape[1:]
    if not proper or (not exporting and found.shape[0] != length(x)):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"members must return logits (n, classes), or one logit (n, 1) of two classes; got {shape}")
    if of_labels and (found.ndim == 1 or found.shape[1] == 1):
        raise ValueError(f"members must return logits (n, labels) of two labels or more; got {tuple(found.shape)}")
    single, found = of_labels or found.shape[1:].numel() == 1, as_logits(found)
    # Once a member: it costs as much as a small network. Of results on a GPU this would have to wait for each of them.
    enough = exporting or not single or len(found) >= _SEVERAL
    if not exporting and enough and member not in _checked and found.device.type == "cpu":
        _checked.add(member)
        if are_probabilities(found[:_FEW]):
            warnings.warn(f"a member {SOFTMAX}", stacklevel=7)
        elif single and bool(((found >= 0) & (found <= 1)).all()):
            warnings.warn(f"a member {SIGMOID}", stacklevel=7)
    return found


#: From a member and a batch as it takes it to features (n, ...).
FeatureFunction = Callable[[nn.Module, Any], Tensor]


class LogitsWithFeatures:
    """A statement: a member's logits, and behind them the features of the same pass, (n, classes + d).

    `of` is the name of a layer, whose outputs are taken, or a function of a member and a batch as the member takes it.
    Outputs of shape (n, channels, height, width) are averaged over pixels; what else has several axes is flattened.
    """

    classes: int = 0  #: how many of the columns are logits, as of the last batch
    recordable = False  #: in a recording layers are fused, which changes what they return

    def __init__(self, of: str | FeatureFunction) -> None:
        self.of = of

    def __call__(self, member: nn.Module, x: Inputs) -> Tensor:
        """Return logits and features of a batch."""
        if isinstance(self.of, str):
            features: Any = None

            def keep(_layer: nn.Module, _given: object, output: Tensor) -> None:
                nonlocal features
                features = output.clone()  # the next layer may work in place

            hook = member.get_submodule(self.of).register_forward_hook(keep)
            try:
                outputs = logits(member, x)
            finally:
                hook.remove()
        else:
            outputs = logits(member, each(Tensor.clone, x))
            features = self.of(member, x)
        if not isinstance(features, Tensor) or features.ndim < 2 or len(features) != len(outputs):
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ValueError(f"features must be a tensor of shape (n, ...), but {self.of!r} gave {shape}")
        self.classes = outputs.shape[1]
        rows = features.mean(dim=(2, 3)) if features.ndim == 4 else features.flatten(1)
        return torch.cat([outputs, rows.to(outputs.dtype)], dim=1)


def check_features(members: Iterable[nn.Module], features: object) -> None:
    """Raise unless `features` is a function, or the name of a layer that every member has."""
    if not isinstance(features, str):
        if not callable(features):
            raise TypeError(f"features must be a layer's name or a function of a member and a batch, got {features!r}")
        return
    for number, member in enumerate(members, start=1):
        layers = [name for name, _ in member.named_modules() if name]
        if features not in layers:
            near = difflib.get_close_matches(features, layers, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"the last ones are {', '.join(layers[-3:])}"
            raise ValueError(f"features must name a layer, and member {number} has no {features!r}; {hint}")


def of_all(
    say: Statement,
    placed: Sequence[tuple[nn.Module, torch.device, torch.dtype]],
    batch: Inputs,
    normalize: Normalize | None,
    target: torch.device,
) -> Tensor:
    """Return every member's outputs on a batch, one after another, (members, n, ...), on the device `target`."""
    if odd := next((number for number, (member, *_) in enumerate(placed, start=1) if member.training), 0):
        warnings.warn(f"member {odd} is in train mode, and predicts so; call its eval() first", stacklevel=5)
    inputs = {device: move(batch, device) for device in {device for _, device, _ in placed}}
    with once(getattr(say, "recordable", True)):  # members on one backbone run it once
        every = [say(member, to_model(inputs[device], normalize, dtype)) for member, device, dtype in placed]
    if len(counts := {one.shape[1:] for one in every}) > 1:
        raise ValueError(f"members must return logits of the same classes; got {sorted(map(tuple, counts))} an input")
    return torch.stack(every if inputs.keys() == {target} else [one.to(target) for one in every])


def channels_last(x: Tensor) -> Tensor:
    """Return images with the channels of a pixel together.

    Images of one channel lie so in any case, and PyTorch reads the layout off their strides, so these are set.
    """
    _, channels, height, width = x.shape
    laid_out = x.contiguous(memory_format=torch.channels_last)
    return laid_out.as_strided(x.shape, (channels * height * width, 1, channels * width, channels))


class CapturedPrediction:
    """A recording of all members on batches of one shape; making it raises where members cannot be recorded.

    A replay reads weights and statistics from the memory that they were recorded in: new values there count. All else
    that members have, such as a temperature that is a Python number, is as it was when they were recorded.
    """

    def __init__(
        self, say: Statement, members: Sequence[nn.Module], normalize: Normalize | None, batch: Tensor
    ) -> None:
        self._say, self._members, self._normalize = say, list(members), normalize
        self._device = device_of(members[0])
        self._recorded = _state(members, batch)
        self._streams = [torch.cuda.Stream(self._device) for _ in range(min(_STREAMS, len(self._members)))]
        # Tensors of inference mode could not be written to outside.
        with torch.inference_mode(False), torch.no_grad(), accelerate(*members):
            self._input = batch.to(self._device, copy=True)
            self._channels_last = _has_tensor_cores(members[0], batch)
            try:
                warm_up(self._predict, self._device)
            except RuntimeError:  # a network may take images apart in ways that this layout forbids
                self._channels_last = False
                warm_up(self._predict, self._device)
            self._graph, self._output = record(self._predict, self._device)
        self._alive = [dict(vars(module)) for member in members for module in member.modules()]  # what it reads

    def fits(self, say: Statement, members: Sequence[nn.Module], normalize: Normalize | None, batch: Tensor) -> bool:
        """Return whether this is a recording of this statement, with these members and weights, for such a batch.

        Kernels are chosen while recording: the switches that chose them must not have changed since.
        """
        return (say, normalize, _state(members, batch)) == (self._say, self._normalize, self._recorded)

    def over(self, batches: Iterable[Tensor], target: torch.device) -> Iterator[Tensor]:
        """Yield every member's outputs on each batch, (members, n, classes), on the device `target`."""
        for batch in batches:
            rows = len(batch)  # behind a batch that is not full, rows of the one before are predicted once more
            self._input[:rows].copy_(batch)
            self._graph.replay()
            yield self._output[:, :rows].to(target, copy=True)

    def _predict(self) -> Tensor:
        current = torch.cuda.current_stream(self._device)
        for stream in self._streams:
            stream.wait_stream(current)
        outputs = []
        for position, member in enumerate(self._members):
            with torch.cuda.stream(self._streams[position % len(self._streams)]):
                x = to_model(self._input, self._normalize, dtype_of(member))
                outputs.append(self._say(member, channels_last(x) if self._channels_last else x))
        for stream in self._streams:
            current.wait_stream(stream)
        return torch.stack(outputs)


def can_capture(members: Sequence[nn.Module]) -> bool:
    """Return whether all members lie on one GPU, and none on a backbone that is better run once for all."""
    device = device_of(members[0])
    return device.type == "cuda" and all(
        device_of(member) == device and not isinstance(member, Headed) for member in members
    )


def _state(members: Sequence[nn.Module], batch: Tensor) -> tuple[object, ...]:
    """Return what a recording is of: places of weights and statistics, modes, the batch, PyTorch's switches."""
    places = tuple(value.data_ptr() for member in members for value in (*member.parameters(), *member.buffers()))
    modes = tuple(module.training for member in members for module in member.modules())
    return places, modes, batch.shape, batch.dtype, switches()


def switches() -> tuple[object, ...]:
    """Return PyTorch's switches that decide in what precision members run."""
    autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    return *tf32_settings(), autocast


def _has_tensor_cores(member: nn.Module, batch: Tensor) -> bool:
    """Return whether a member convolves images on tensor cores, which want the channels of a pixel together."""
    images = batch.ndim == 4 and any(isinstance(layer, nn.Conv2d) for layer in member.modules())
    dtype = dtype_of(member)
    rounded = dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled("cuda")
    return images and (rounded or (dtype == torch.float32 and tf32_in_convolutions()))

"""What a model, a loss or an augmentation remembers in Python, where a recording on a GPU does not see it.

A recorded step repeats what kernels did to memory. What Python did, such as counting calls, drawing from a generator on
the host, or putting another tensor in the place of one, it does not, so that what remembers in this way cannot be
recorded. Looked at are attributes and buffers, containers and objects in them, and the variables that functions
enclose; not global variables, nor what objects of the standard library, NumPy and PyTorch hide, nor anything that
cannot be looked at without harm.
"""

import contextlib
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, complex, str, bytes, np.generic, type(None))
#: Objects within objects.
_DEEPEST = 8
#: What PyTorch keeps in a module: weights, buffers, parts, hooks. Buffers are looked at by themselves.
_INTERNAL = frozenset({*vars(nn.Module()), "_compiled_call_impl"} - {"training"})
#: Bytes of an array, and entries of a container, up to which they are looked at; larger ones are data, not memories.
_SMALL, _FEW = 2**20, 10**5
#: Bytes of a tensor on a device, up to which there is room for a copy.
_LARGE = 2**28
_OPAQUE = frozenset({*sys.stdlib_module_names, "torch", "numpy"})


class HiddenState:
    """What the owners remember now, each by what to call it; all that was found stays alive with this.

    copies : whether to copy what is in tensors, so that it can be given back.
    """

    def __init__(self, owners: Mapping[str, object], copies: bool = False) -> None:
        self._copies = copies
        #: By owner and where: numbers, and of tensors where they lie.
        self._values: dict[tuple[str, str], Any] = {}
        self.found: dict[int, object] = {}  #: all objects, by identity
        self._objects: list[Callable[[], object]] = []  # what gives them back
        self._contents: list[tuple[Tensor, Tensor]] = []  # tensors that are no weights, and the numbers in them
        for owner, root in owners.items():
            self._look(owner, "", root, _DEEPEST)

    def why_not(self, later: "HiddenState") -> str | None:
        """Return why steps between this and a later state cannot be recorded; None where nothing speaks against it."""
        return self._difference(later, {**self._values, **later._values})

    def why_not_after_the_first(self, later: "HiddenState") -> str | None:
        """Return why not, `later` being after the first run, which may make what was not there, but no more than that.

        A flag that it sets may be of what it does once, such as choosing initial weights, which training would lack.
        """
        there = {key: value for key, value in self._values.items() if isinstance(value, _PLAIN) and value is not None}
        return self._difference(later, {key: value for key, value in there.items() if key in later._values})

    def _difference(self, later: "HiddenState", keys: Mapping[tuple[str, str], Any]) -> str | None:
        for owner, where in keys:
            before, after = (state._values.get((owner, where), state) for state in (self, later))
            if before == after or (before != before and after != after):  # the latter: not a number
                continue
            name = where.removeprefix(".")
            if isinstance(before, _Place) and isinstance(after, _Place):
                return f"{owner} puts another tensor in the place of its {name} as it runs"
            return f"{owner} changes its attribute {name} as it runs, which a recording does not"
        return None

    @torch.no_grad()
    def restore_contents(self) -> None:
        """Give tensors that are no weights the numbers that they had; those that have them are not written to."""
        for tensor, numbers in self._contents:
            if not torch.equal(tensor, numbers):
                tensor.copy_(numbers)

    def restore(self) -> None:
        """Give all of it back, but for what refuses."""
        for give_back in self._objects:
            with contextlib.suppress(Exception):  # of any kind: it is someone's own object
                give_back()
        self.restore_contents()

    def _look(self, owner: str, where: str, value: Any, deep: int) -> None:
        with contextlib.suppress(Exception):  # of any kind: it is someone's own object
            if isinstance(value, _PLAIN):
                self._values[owner, where] = value
            elif isinstance(value, Tensor):
                if value.is_leaf or not value.requires_grad:  # no step can go on from the graph of another
                    self._look_at_tensor(owner, where, value, _version(value))
            elif deep and id(value) not in self.found:
                self.found[id(value)] = value
                for name, part in self._parts(owner, where, value):
                    self._look(owner, where + name, part, deep - 1)

    def _look_at_tensor(self, owner: str, where: str, tensor: Tensor, version: int | None) -> None:
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
            return
        self.found[id(tensor)] = tensor
        self._values[owner, where] = _Place((tensor.data_ptr(), version))
        can_be_written = not tensor.is_inference() and not isinstance(tensor, nn.Parameter)
        most = _SMALL if tensor.device.type == "cpu" else _LARGE
        if self._copies and can_be_written and tensor.nbytes <= most:
            self._contents.append((tensor, tensor.detach().clone()))

    def _parts(self, owner: str, where: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield what an object consists of, and note how it is given back."""
        if isinstance(value, nn.Module):
            for path, module in value.named_modules():
                yield from self._parts_of_module(owner, where, f".{path}" if path else "", module)
        elif isinstance(value, dict | list | deque | tuple | set) and len(value) > _FEW:
            yield "", len(value)
        elif isinstance(value, dict):
            self._objects.append(partial(_refill, value, dict(value)))
            yield from ((f"[{_name(key)}]", part) for key, part in list(value.items()))
        elif isinstance(value, list | deque | tuple):
            if not isinstance(value, tuple):
                self._objects.append(partial(_replace, value, list(value)))
            yield from ((f"[{number}]", part) for number, part in enumerate(list(value)))
        elif isinstance(value, set):
            self._objects.append(partial(_refill, value, set(value)))
            yield "", repr(sorted(map(_name, value)))
        elif isinstance(value, MethodType):
            yield from (("", value.__self__), ("", value.__func__))
        elif isinstance(value, partial):
            yield from (("", value.func), (".args", value.args), (".keywords", value.keywords))
        elif isinstance(value, FunctionType) and not _is_opaque(value):
            yield from self._enclosed(value)
            yield from self._attributes(vars(value))
        elif (inner := _inner_state(value)) is not None:
            state, give_back = inner
            self._objects.append(give_back)
            yield "", state
        elif not isinstance(value, type) and (isinstance(value, SimpleNamespace) or not _is_opaque(type(value))):
            yield from self._attributes(getattr(value, "__dict__", {}))
            yield from self._slots(value)

    def _parts_of_module(self, owner: str, where: str, path: str, module: nn.Module) -> Iterator[tuple[str, Any]]:
        for name, part in self._attributes(vars(module), _INTERNAL):
            yield path + name, part
        with contextlib.suppress(Exception):  # scripted modules have no such dictionary
            self._objects.append(partial(_refill, module._buffers, dict(module._buffers)))
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    self._look_at_tensor(owner, f"{where}{path}.{name}", buffer, None)

    def _attributes(self, own: dict[str, Any], without: frozenset[str] = frozenset()) -> Iterator[tuple[str, Any]]:
        mine = {name: part for name, part in own.items() if name not in without}
        self._objects.append(partial(_refill, own, mine, without))
        yield from ((f".{name}", part) for name, part in mine.items())

    def _slots(self, value: object) -> Iterator[tuple[str, Any]]:
        for kind in type(value).__mro__:
            names = vars(kind).get("__slots__", ())
            for name in [names] if isinstance(names, str) else names:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    self._objects.append(partial(object.__setattr__, value, name, getattr(value, name)))
                    yield f".{name}", getattr(value, name)

    def _enclosed(self, function: FunctionType) -> Iterator[tuple[str, Any]]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            self._objects.append(partial(setattr, cell, "cell_contents", content))
            yield f".{name}", content


def attributes(models: Iterable[nn.Module]) -> list[object]:
    """Return what modules keep, the very objects: modes, settings, tensors that are no buffers.

    A recording reads some of them, which stay alive with this; where one is another by now, it is of another model.
    """
    return [value for model in models for module in model.modules() for value in vars(module).values()]


class _Place(tuple[int, int | None]):
    """Where a tensor lies, and for one on the host how often it was written to."""


def _is_opaque(kind: Any) -> bool:
    return (kind.__module__ or "").partition(".")[0] in _OPAQUE


def _inner_state(value: Any) -> tuple[str | bytes, Callable[[], object]] | None:
    """Return the state of a generator on the host or of an array, and what gives it back; None for other objects."""
    state: Any
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        state = value.getstate()
        return repr(state), partial(value.setstate, state)
    if isinstance(value, np.random.Generator):
        state = value.bit_generator.state
        return repr(state), partial(setattr, value.bit_generator, "state", state)
    if isinstance(value, np.random.RandomState):
        state = value.get_state()
        return repr([state[1].tolist(), *state[2:]]), partial(value.set_state, state)
    if isinstance(value, torch.Generator) and value.device.type == "cpu":
        state = value.get_state()
        return state.numpy().tobytes(), partial(value.set_state, state)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject and value.nbytes <= _SMALL:
        return value.tobytes(), partial(_rewrite, value, value.copy())
    return None


def _version(tensor: Tensor) -> int | None:
    """Return how often a tensor on the host was written to; what happens on a device is recorded."""
    if tensor.device.type != "cpu" or isinstance(tensor, nn.Parameter) or tensor.is_inference():
        return None
    return tensor._version


def _name(key: object) -> str:
    """Return what to call a key: that of others than plain values may be long, or take long."""
    return repr(key) if isinstance(key, _PLAIN) else f"{type(key).__name__} {id(key)}"


def _refill(container: Any, content: Any, without: frozenset[str] = frozenset()) -> None:
    """Give a dictionary or set its content back, but for some keys; one that has it is left alone."""
    for key in [key for key in container if key not in without and key not in content]:
        if isinstance(container, dict):
            del container[key]
        else:
            container.discard(key)
    if isinstance(container, dict):
        content = {k: v for k, v in content.items() if k not in container or container[k] is not v}
    if content:
        container.update(content)


def _replace(container: Any, content: list[Any]) -> None:
    """Give a list its content back; one that has it is left alone."""
    if len(container) != len(content) or any(a is not b for a, b in zip(container, content, strict=True)):
        container.clear()
        container.extend(content)


def _rewrite(array: np.ndarray, numbers: np.ndarray) -> None:
    if array.tobytes() != numbers.tobytes():
        np.copyto(array, numbers)

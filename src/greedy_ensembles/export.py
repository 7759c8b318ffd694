"""The ensemble as one graph, for places where neither this package nor the members' code is: ONNX and torch.export.

The graph takes a batch x in the form in which `predict_proba` took the example that it was made from: uint8 images stay
uint8, and scaling them to [0, 1] and taking mean and standard deviation out are part of the graph. The batch may have
any length. Of a dict or tuple of tensors, the ONNX graph has an input for every entry: by its name, or x_0, x_1, ... It
gives

    probabilities  (n, classes)  the mean of the members' class probabilities
    epistemic      (n,)          mutual information, in nats
    aleatoric      (n,)          expected entropy
    total          (n,)          predictive entropy
    flag           (n,)          only of a calibrated ensemble: whether its score reaches the threshold

Where the calibration has a temperature, the probabilities are at that temperature. Of independent labels, probabilities
are (n, labels, 2).
"""

import copy
import importlib.util
import io
import logging
import shutil
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from greedy_ensembles.checks import as_path, first_line
from greedy_ensembles.engines.prediction import Statement
from greedy_ensembles.flags import SCORES, Calibration
from greedy_ensembles.forms import describe_inputs
from greedy_ensembles.inputs import Inputs, Normalize, dtype_of, each, entries, to_model
from greedy_ensembles.storage import clear_leftovers, not_written, temporary_path, write_bytes

#: An ONNX file cannot be larger than two gigabytes; the weights of larger ensembles go into a second file beside it.
ONNX_LIMIT = 2**31 - 2**20


class Graph(nn.Module):
    """What is exported: from a batch to probabilities and uncertainties, by name."""

    def __init__(
        self,
        members: Iterable[nn.Module],
        normalize: Normalize | None,
        calibration: Calibration | None,
        say: Statement,
    ) -> None:
        super().__init__()
        # Copies, since a graph is made on the CPU and the ensemble is to stay where it is.
        self.members = nn.ModuleList(copy.deepcopy(member).cpu().eval() for member in members)
        self.normalize, self.calibration, self.say = normalize, calibration, say
        #: Names of the outputs, in their order.
        self.outputs = ["probabilities", *SCORES, *(["flag"] if calibration else [])]

    def forward(self, x: Inputs) -> dict[str, Tensor]:
        """Return the outputs that the module's docstring lists."""
        probs = torch.stack(
            [self.say(member, to_model(x, self.normalize, dtype_of(member))) for member in self.members]
        )
        # As in ge.metrics, which looks at the values to refuse what are no probabilities, as a graph cannot.
        double = probs.double()
        mean = double.mean(dim=0)
        total = torch.special.entr(mean).flatten(1).sum(dim=1)  # over classes, or labels and their two outcomes
        aleatoric = torch.special.entr(double).flatten(2).sum(dim=2).mean(dim=0)
        scores = {"epistemic": (total - aleatoric).clamp_min(0), "aleatoric": aleatoric, "total": total}
        found = self.calibration
        outputs = {"probabilities": mean if found is None else found.tempered(mean), **scores}
        flag = {} if found is None else {"flag": scores[found.score] >= found.threshold}
        return {**{name: value.to(probs.dtype) for name, value in outputs.items()}, **flag}


def export_onnx(graph: Graph, path: str | Path, example: Inputs) -> None:
    """Write the graph as ONNX, made from at least one example of the inputs."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"exporting to ONNX needs {' and '.join(missing)}: install them with pip install 'greedy-ensembles[onnx]'"
        )
    with _whole_files(_target(path)) as unfinished, _without_remarks():
        program = _program(graph, example)
        several = isinstance(example, dict | tuple)
        names = list(example) if isinstance(example, dict) else [f"x_{place}" for place in range(len(example))]
        onnx: Any = torch.onnx.export(
            program,
            (),
            input_names=names if several else ["x"],
            output_names=graph.outputs,
            dynamic_shapes=_any_length(example),
            dynamo=True,
            verbose=False,
        )
        size = sum(tensor.nbytes for tensor in program.state_dict.values())
        onnx.save(unfinished, external_data=size > ONNX_LIMIT)


def export_torch(graph: Graph, path: str | Path, example: Inputs) -> None:
    """Write the graph as a program of torch.export, made from at least one example of the inputs."""
    path, content = _target(path), io.BytesIO()  # PyTorch's own writer of files ends the process where the disk is full
    with _without_remarks():
        torch.export.save(_program(graph, example), content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, [content.getbuffer()])


def _program(graph: Graph, example: Inputs) -> ExportedProgram:
    inputs = _two_of(example)
    try:
        with torch.no_grad():
            graph(inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"the members cannot take {describe_inputs(inputs)}: {first_line(error)}") from error
    try:
        return torch.export.export(graph, (inputs,), dynamic_shapes=_any_length(inputs))
    except Exception as error:  # models are the user's own, and fail in ways of their own
        raise ValueError(f"torch.export cannot make a graph of the members: {first_line(error)}") from error


def _any_length(inputs: Inputs) -> tuple[Any]:
    batch = Dim("batch")  # made here, since it imports sympy, which is slow
    return (each(lambda _: {0: batch}, inputs),)


def _two_of(example: Inputs) -> Inputs:
    """Return the first example twice: a batch of one would be taken for a fixed length."""
    for _, one in entries(example):
        if one.ndim < (2 if isinstance(example, Tensor) else 1) or len(one) == 0:
            raise ValueError(f"example must be a batch (n, ...) of at least one input, got shape {tuple(one.shape)}")
    return each(lambda one: one[[0, 0]].detach().cpu(), example)  # type: ignore[no-any-return]


def _target(path: str | Path) -> Path:
    path = as_path("path", path).absolute()
    if path.is_dir():
        raise ValueError(f"path must be that of a file, but {path} is a folder")
    return path


@contextmanager
def _whole_files(path: Path) -> Iterator[Path]:
    """Yield a place to write to; what was written there takes the place of `path` once the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path.parent, path.name)
    folder = temporary_path(path)
    try:
        folder.mkdir()
        yield folder / path.name
        for file in folder.iterdir():  # the graph, and its weights where they are a file of their own
            file.replace(path.with_name(file.name))
    except OSError as error:
        raise not_written(path, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Keep back what PyTorch's exporters say about their own insides and about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

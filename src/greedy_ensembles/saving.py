"""A saved ensemble: ensemble.json, a README.md, and the members' weights, which runs keep in the same places.

What members share (the weights of one network with several masks, a backbone with several heads) stands in the file of
the first alone. The file of a member that is not ``make_model``'s network as it is says which method built it.
"""

import copy
import dataclasses
import html
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from greedy_ensembles import storage
from greedy_ensembles.data import ImageSet, LabelledSet, TableSet
from greedy_ensembles.forms import Form, from_json, to_json
from greedy_ensembles.heads import Headed
from greedy_ensembles.inputs import Inputs, Normalize, as_normalize, each, logits_of
from greedy_ensembles.labels import TARGETS
from greedy_ensembles.machine import __version__
from greedy_ensembles.method import METHODS
from greedy_ensembles.method.coupling import BUILT_BY
from greedy_ensembles.storage import FolderError

#: What a run held out of everything, so that no member learnt from it and no epoch was chosen on it, lies beside the
#: weights, in a run's folder and in that of an ensemble saved from it: either can be judged wherever it is taken.
HELD_OUT = "held-out.safetensors"
#: What each member's best epoch was selected on, of data of one's own; lambda_M is chosen on it.
VALIDATION = "validation.safetensors"

Converted = TypeVar("Converted")


class Description(NamedTuple):
    """What ensemble.json holds."""

    members: list[str]  #: their checksums
    normalize: Normalize | None
    inputs: Form | None
    notes: Mapping[str, str]
    run: Mapping[str, Any] | None  #: what is kept of the run that it came from
    targets: str


def read_description(path: Path) -> Description:
    """Return what ensemble.json says, or refuse it."""
    content = storage.read_json(path)
    check_format(path, content)
    checksums: Any = content.get("members")
    proper = (
        isinstance(checksums, list) and len(checksums) > 0 and all(isinstance(checksum, str) for checksum in checksums)
    )
    storage.require(proper, path, "its 'members' are not a list of checksums")
    notes: Any = content.get("notes", {})  # which older folders do not have
    proper = isinstance(notes, dict) and all(isinstance(value, str) for value in notes.values())
    storage.require(proper, path, "its 'notes' are not texts by title")
    run: Any = content.get("run")  # nor this
    storage.require(run is None or isinstance(run, dict), path, "its 'run' is no object")
    normalize = read_field(path, as_normalize, content.get("normalize"))
    inputs = read_field(path, from_json, content.get("inputs"))
    return Description(checksums, normalize, inputs, notes, run, read_targets(path, content))


def write_description(path: Path, told: Description) -> None:
    """Write ensemble.json."""
    inputs = None if told.inputs is None else to_json(told.inputs)
    storage.write_json(path, {"format": storage.FORMAT, **told._asdict(), "inputs": inputs})


def read_field(path: Path, convert: Callable[[Any], Converted], value: Any) -> Converted | None:
    """Return what a field of a file is converted into, None where older files do not have it, or refuse the file."""
    with storage.reading(path, "one of its fields is none of ours"):
        return None if value is None else convert(value)


def read_targets(path: Path, content: Mapping[str, Any]) -> str:
    """Return what a file says that inputs have, classes or labels, or refuse the file."""
    found = content.get("targets", "classes")  # which older folders do not have
    storage.require(found in TARGETS, path, f"its 'targets' are none of {', '.join(TARGETS)}")
    return str(found)


def weights_file(folder: Path, number: int) -> Path:
    """Return where member `number`, counted from 1, has its weights in a saved ensemble or a run folder."""
    return folder / "members" / f"{number:02d}" / "weights.safetensors"


def check_format(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse a folder that a later version of this package wrote."""
    found = content.get("format")
    if type(found) is not int or not 1 <= found <= storage.FORMAT:  # true and 1.0 would pass for 1
        raise FolderError(f"{path} has format {found!r}; this version reads formats 1 to {storage.FORMAT}")


def check_rebuilt(make_model: Callable[[], nn.Module], x: Inputs, device: torch.device) -> None:
    """Refuse a factory whose models could not be read back, since files hold their `state_dict` and nothing else.

    Args:
        make_model: the factory; it is called twice.
        x: a few inputs as models take them.
        device: where they are.
    """
    one, other = (make_model().to(device).eval() for _ in range(2))
    said: list[Tensor] = []
    try:
        other.load_state_dict(one.state_dict())
    except RuntimeError as error:
        why = "make_model returns models of several shapes, which run_dir could not read back; leave it out"
        raise ValueError(why) from error
    with torch.no_grad():
        for model in (one, other):
            torch.manual_seed(0)
            said.append(logits_of(model, each(Tensor.clone, x)))
    if not torch.allclose(said[0], said[1], rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ValueError(
            "make_model returns models that differ in more than their state_dict, such as in numbers drawn at random, "
            "so that run_dir could not read them back; use register_buffer for these, or leave run_dir out"
        )


def write_members(folder: Path, members: Sequence[nn.Module]) -> list[str]:
    """Write the members' weights, and return their checksums."""
    checksums: list[str] = []
    for number, member in enumerate(members, start=1):
        weights = weights_file(folder, number)
        weights.parent.mkdir(parents=True)
        first = (members[0].state_dict(), checksums[0]) if checksums else ({}, "")
        checksums.append(write_member(weights, member, *first))
    return checksums


def write_member(path: Path, model: nn.Module, there: Mapping[str, Tensor], checksum: str) -> str:
    """Write a member's weights and return their checksum; what it shares with the first member stands there alone.

    `there` is what the first has, as far as it is in memory, nothing for the first itself; `checksum` is of its file.
    """
    own = model.state_dict()
    shared = [name for name, value in own.items() if name in there and _is_same(value, there[name])]
    metadata = {BUILT_BY: getattr(model, BUILT_BY, "")}
    if shared:
        metadata |= {"shared": json.dumps(shared), "shared_with": checksum}
    told = {name: value for name, value in metadata.items() if value}
    return storage.write_tensors(path, {name: value for name, value in own.items() if name not in shared}, told)


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same memory, read in the same way."""
    alike = one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype
    return alike and one.numel() > 0 and one.data_ptr() == other.data_ptr()


def _shared(
    path: Path, metadata: Mapping[str, str], first: nn.Module | None, device: torch.device | str
) -> dict[str, Tensor]:
    """Return what a member shares with the first one, whose file must be the one that it was written beside."""
    weights, _ = storage.read_tensors(weights_file(path.parents[2], 1), device, metadata.get("shared_with", ""))
    if first is not None:
        weights = first.state_dict()  # the same memory
    with storage.reading(path, "what it shares with the first member is not there"):
        return {name: weights[name] for name in json.loads(metadata["shared"])}


def load_members(
    folder: Path,
    checksums: Sequence[str],
    make_model: Callable[[], nn.Module],
    device: torch.device | str = "cpu",
    start: int = 0,
) -> list[nn.Module]:
    """Build the members of a saved ensemble or a run, all or those from `start` on, and give them their weights.

    What others share with the first is shared in memory if that is there.
    """
    members: list[nn.Module] = []
    for number, checksum in enumerate(checksums[start:], start=start + 1):
        first = members[0] if members and not start else None
        members.append(_load_member(weights_file(folder, number), checksum, make_model, device, first))
    for one, other in pairwise(map(_unsaved, members)):
        both = [name for name in one if name in other and one[name].shape == other[name].shape]
        if odd := [name for name in both if not torch.equal(one[name], other[name])]:
            warnings.warn(
                f"make_model returns models that differ in {odd[0]!r}, which their state_dict does not hold. If it was "
                "drawn at random, loaded members are not what was saved: use register_buffer for it",
                stacklevel=4,
            )
            break
    return members


def _unsaved(model: nn.Module) -> dict[str, Tensor]:
    """Return tensors that a model keeps outside of its state_dict, but for those that hooks compute at every call."""
    found: dict[str, Any] = {}
    for name, layer in model.named_modules():
        kept = {} if layer._forward_pre_hooks else vars(layer) | layer._buffers
        found |= {f"{name}.{key}".lstrip("."): value for key, value in kept.items() if isinstance(value, Tensor)}
    return {name: value for name, value in found.items() if name not in model.state_dict()}


def _load_member(
    path: Path, checksum: str, make_model: Callable[[], nn.Module], device: torch.device | str, first: nn.Module | None
) -> nn.Module:
    weights, metadata = storage.read_tensors(path, device, checksum)
    shared = _shared(path, metadata, first, device) if "shared" in metadata else {}
    weights |= shared
    model = make_model()
    if isinstance(model, Headed):
        # Not the factory's own backbone, on which other ensembles stand; members of one ensemble share theirs.
        whole = all(f"backbone.{name}" in shared for name in model.backbone.state_dict())
        model.backbone = first.backbone if isinstance(first, Headed) and whole else copy.deepcopy(model.backbone)
    if built_by := metadata.get(BUILT_BY):
        storage.require(built_by in METHODS, path, f"its members are built by {built_by!r}, which is no method")
        model = METHODS[built_by]().as_member(model)
    model = model.to(device)
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    if expected != found:
        name = next(n for n in (*expected, *found) if expected.get(n) != found.get(n))
        raise ValueError(
            f"make_model does not fit {path}: {name!r} has shape {expected.get(name, 'none')} in the model "
            f"and {found.get(name, 'none')} in the file"
        )
    floats = {value.dtype for value in weights.values() if value.is_floating_point()}
    for name, value in model.state_dict().items():
        own, due = weights[name].dtype, value.dtype
        as_a_whole = len(floats) == 1 and own.is_floating_point and due.is_floating_point  # as of model.half()
        if own != due and not as_a_whole:
            raise ValueError(f"make_model does not fit {path}: {name!r} is {due} in the model and {own} in the file")
    # Taking the mapped tensors over, rather than copying them, leaves members on disk until they are used;
    # parameters that share storage must go on sharing it, and are copied into.
    tied = len(list(model.parameters())) != len(list(model.named_parameters(remove_duplicate=False)))
    model.load_state_dict(weights, assign=not tied)
    return model.eval()


def write_held_out(folder: Path, held_out: LabelledSet, name: str = HELD_OUT) -> None:
    """Keep examples with their labels in a run's folder."""
    assert held_out.labels is not None  # they came out of what was trained on
    about = {field.name: getattr(held_out, field.name) for field in _about(held_out)}
    tensors = {"inputs": torch.from_numpy(held_out.inputs), "labels": torch.from_numpy(held_out.labels)}
    storage.write_tensors(folder / name, tensors, {"about": json.dumps(about)})


def read_held_out(folder: Path, name: str = HELD_OUT) -> ImageSet | TableSet | None:
    """Return what a run held out, None where it keeps nothing, or refuse the file."""
    file = folder / name
    if not file.exists():
        return None
    storage.check_contained(folder)
    tensors, metadata = storage.read_tensors(file)
    with storage.reading(file, "it holds no examples of ours"):
        about: dict[str, Any] = json.loads(metadata["about"])
        inputs, labels = tensors["inputs"].numpy(), tensors["labels"].numpy()
        kind = TableSet if inputs.ndim == 2 else ImageSet
        found = kind(inputs, labels, **{field.name: _plain(about[field.name]) for field in _about(kind)})
        proper = len(found) > 0 and bool(np.isfinite(inputs).all())
    storage.require(proper, file, "it holds no examples of ours")
    return found


def _about(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)[2:]  # all but inputs and labels


def _plain(value: Any) -> Any:
    """Return a text, or a tuple of texts where there is a list; nothing else stands here."""
    if isinstance(value, list):
        return tuple(str(item) for item in value)
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value


def model_card(
    members: Iterable[nn.Module], normalize: Normalize | None, notes: Mapping[str, object], targets: str = "classes"
) -> str:
    """Return the README.md, in Markdown: what a person who finds the folder needs to know. No program reads it."""
    members = list(members)
    kinds = Counter(f"{type(member).__module__}.{type(member).__qualname__}" for member in members)
    counts = [sum(parameter.numel() for parameter in member.parameters()) for member in members]
    each = f"{min(counts):,}" if len(set(counts)) == 1 else f"{min(counts):,} to {max(counts):,}"
    normalised = "none: inputs go to the members as they are, uint8 ones as numbers in [0, 1]"
    if normalize is not None:
        first = [", ".join(f"{value:g}" for value in part[:8]) for part in normalize]
        more = f", ... {len(normalize[0])} in all" if len(normalize[0]) > 8 else ""
        mean, std = (f"({values}{more})" for values in first)
        normalised = f"mean {mean} and standard deviation {std} are taken out of the inputs, by the ensemble itself"
    facts = {
        "Members": len(members),
        "Models": ", ".join(f"{count} x {kind}" for kind, count in kinds.items()),
        "Parameters": f"{each} a member, {sum(counts):,} in all",
        "Normalisation": normalised,
        "Written by": f"greedy-ensembles {__version__}",
    }
    shape = "(n, labels, 2)" if targets == "labels" else "(n, classes)"
    return _TEMPLATE.format(facts=_table(facts), shape=shape, notes=f"\n{_table(notes)}\n" if notes else "")


_TEMPLATE = """\
# An ensemble of classifiers

Trained or collected with greedy-ensembles. The members' class probabilities are averaged to predict, and where they
disagree, the prediction is not to be trusted.

{facts}
{notes}
To load it, `make_model` has to build a model like the members, from inputs to logits:

```python
import greedy_ensembles as ge

ensemble = ge.Ensemble.load("path of this folder", make_model)
probabilities = ensemble.predict_proba(x).mean(dim=0)  # {shape}
ensemble.uncertainty(x).epistemic                      # (n,), in nats: high where members disagree
```

The weights are safetensors and `ensemble.json` holds their checksums; loading executes nothing that is in this folder.
"""


def _table(rows: Mapping[str, object]) -> str:
    lines = [f"| {_cell(title)} | {_cell(value)} |" for title, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: object) -> str:
    return html.escape(" ".join(str(value).split()), quote=False).replace("|", "\\|")  # a text may bring a script

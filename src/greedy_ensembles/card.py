"""The README.md of a saved ensemble: what a person who finds the folder needs to know. No program reads it."""

import html
from collections import Counter
from collections.abc import Iterable, Mapping

from torch import nn

from greedy_ensembles.inputs import Normalize
from greedy_ensembles.version import __version__


def model_card(
    members: Iterable[nn.Module], normalize: Normalize | None, notes: Mapping[str, object], targets: str = "classes"
) -> str:
    """Return the card, in Markdown.

    Args:
        members: of which it tells.
        normalize: what is taken out of inputs.
        notes: lines of the caller's own, by title, such as metrics.
        targets: what members predict, "classes" or independent "labels".
    """
    members = list(members)
    kinds = Counter(_qualified_name(member) for member in members)
    facts = {
        "Members": len(members),
        "Models": ", ".join(f"{count} x {kind}" for kind, count in kinds.items()),
        "Parameters": _range([sum(p.numel() for p in member.parameters()) for member in members]),
        "Normalisation": _of_normalize(normalize),
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


def _qualified_name(member: nn.Module) -> str:
    return f"{type(member).__module__}.{type(member).__qualname__}"


def _range(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{each} a member, {sum(counts):,} in all"


def _of_normalize(normalize: Normalize | None) -> str:
    if normalize is None:
        return "none: inputs go to the members as they are, uint8 ones as numbers in [0, 1]"
    mean, std = (_few(part) for part in normalize)
    return f"mean ({mean}) and standard deviation ({std}) are taken out of the inputs, by the ensemble itself"


def _few(values: tuple[float, ...], most: int = 8) -> str:
    shown = [f"{value:g}" for value in values[:most]]
    return ", ".join(shown if len(values) <= most else [*shown, f"... {len(values)} in all"])

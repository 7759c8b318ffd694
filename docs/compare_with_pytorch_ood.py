"""Our ranking and calibration metrics beside those of pytorch-ood, on the same scores: the tables of metrics.md.

pytorch-ood is no dependency of the project: `pip install --no-deps pytorch-ood==0.4.0` somewhere, and run

    PYTHONPATH=<that site-packages> python docs/compare_with_pytorch_ood.py
"""

import importlib
import importlib.machinery
import math
import sys
from types import ModuleType

import torch
from torch import Tensor

from greedy_ensembles import metrics


def their_metrics() -> ModuleType:
    """Import pytorch_ood.metrics alone: the package around it wants torchvision, which metrics do not."""
    parent = importlib.machinery.PathFinder.find_spec("pytorch_ood")
    if parent is None or parent.submodule_search_locations is None:
        raise SystemExit("pytorch-ood is not installed; see the top of this file")
    package = ModuleType("pytorch_ood")
    package.__path__ = list(parent.submodule_search_locations)
    sys.modules["pytorch_ood"] = package
    return importlib.import_module("pytorch_ood.metrics")


def cases() -> dict[str, tuple[Tensor, Tensor]]:
    """Return in-domain and OOD scores by name."""
    generator = torch.Generator().manual_seed(0)
    inside, outside = (torch.randn(10_000, generator=generator, dtype=torch.float64) + shift for shift in (0, 1))
    return {
        "all distinct": (inside, outside),
        "the same in float16": (inside.half(), outside.half()),
        "to one decimal": (inside.round(decimals=1), outside.round(decimals=1)),
        "to whole numbers": (inside.round(), outside.round()),
        "100 OOD scores, all distinct": (inside, outside[:100]),
        "20 and 20, all distinct": (inside[:20], outside[:20]),
        "7,500 and 2,500, all equal": (torch.zeros(7500), torch.zeros(2500)),
        "one OOD score infinite": (inside, torch.cat([outside[1:], torch.tensor([math.inf])])),
        "one OOD score NaN": (inside, torch.cat([outside[1:], torch.tensor([math.nan])])),
        "no OOD score": (inside, outside[:0]),
    }


def ranking(theirs: ModuleType) -> None:
    """Print AUROC, AP or AUPR, and FPR95 of both, for each case."""
    print("| scores | AUROC | pytorch-ood | AP | pytorch-ood | FPR95 | pytorch-ood |\n|---|---|---|---|---|---|---|")
    for name, (inside, outside) in cases().items():
        scores = torch.cat([inside, outside])
        labels = torch.cat([torch.zeros(len(inside)), -torch.ones(len(outside))])  # theirs: OOD is below 0
        cells = [name]
        for own, other in (
            (metrics.auroc, theirs.functional.auroc),
            (metrics.average_precision, theirs.functional.aupr),
            (metrics.fpr_at_tpr, theirs.functional.fpr_at_tpr),
        ):
            for function, arguments in ((own, (inside, outside)), (other, (scores, labels))):
                try:
                    cells.append(f"{function(*arguments).item():.5f}")
                except ValueError:
                    cells.append("ValueError")
        print("| " + " | ".join(cells) + " |")


def calibration(theirs: ModuleType) -> None:
    """Print the calibration errors of overconfident predictions of ten classes."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(10_000, 10, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((0.6 * logits).softmax(dim=1), 1, generator=generator)[:, 0]
    probs = logits.softmax(dim=1)
    confidence, guess = probs.max(dim=1)
    figures = {
        "`expected_calibration_error`": metrics.expected_calibration_error(probs, labels).item(),
        "`adaptive_calibration_error`": metrics.adaptive_calibration_error(probs, labels).item(),
        '`calibration_error(p="1")`': theirs.calibration_error(confidence, guess == labels, p="1"),
        "`calibration_error()`": theirs.calibration_error(confidence, guess == labels),
    }
    print("\n| calibration | |\n|---|---|")
    for name, value in figures.items():
        print(f"| {name} | {value:.5f} |")


if __name__ == "__main__":
    module = their_metrics()
    ranking(module)
    calibration(module)

"""The page of `engine.py`: what was measured, as Markdown, beside what it must reach."""

from typing import Any

from result import how, judged, told

from greedy_ensembles.paper.pages import Page
from greedy_ensembles.report.table import markdown_table

MODELS = ("VGG16BN", "PreResNet164", "WideResNet28x10")
#: Parts that predict, and with what.
PREDICTING = {f"predicting with {model}": model for model in ("PreResNet20", "VGG16BN")}
_PREDICTING_TARGETS = {"PreResNet20": 3}
_TOGETHER = ("<=", {"VGG16BN": 0.7, "PreResNet164": 0.7, "WideResNet28x10": 1.0})
#: By ratio: what it must reach, by network.
TARGETS = {
    "published loop over concurrent, p* batch 128": (">=", {"VGG16BN": 10, "PreResNet164": 8, "WideResNet28x10": 2.5}),
    "p* batch 8 over Deep Ensembles, concurrent": (
        "<=",
        {"VGG16BN": 1.15, "PreResNet164": 1.2, "WideResNet28x10": 1.15},
    ),
    "p* batch 8 over Deep Ensembles, sequential": (
        "<=",
        {"VGG16BN": 1.15, "PreResNet164": 1.2, "WideResNet28x10": 1.15},
    ),
    "concurrent over sequential, p* batch 128": _TOGETHER,
    "concurrent over sequential, p* batch 8": _TOGETHER,
    "concurrent over sequential, deep": _TOGETHER,
}


def verdict(name: str, model: str, value: float) -> str:
    """Return the target of a ratio, and whether it was met."""
    sign, targets = TARGETS[name]
    return judged(value, sign, targets[model])


def page(content: dict[str, Any]) -> Page:
    """Return what was measured of steps and of predictions."""
    models = {model: content["parts"][model] for model in MODELS if model in content["parts"]}
    predicting = [part for part in PREDICTING if part in content["parts"]]
    parts = [*_kernels(models), *_floors(models), *(text for part in predicting for text in _predicting(content, part))]
    absent = [part for part in (*MODELS, *PREDICTING) if part not in content["parts"]]
    made = {
        **{f"run of {name}": told(part) for name, part in content["parts"].items()},
        **({"not measured yet": ", ".join(absent)} if absent else {}),
        "figures": f"milliseconds per member and step, all of a step included; medians of epochs of {content['steps']}",
        "training": f"batch {content['batch']}, CIFAR-10 shapes, M = {content['size']}",
        "ours": "bf16, PreResNet164 with 18 blocks a stage, samples of p* normalised by running statistics",
        "published loop": "its shape, eager, in PyTorch's default precision (convolutions in TF32), data on the GPU",
        "sequential": "the sixth member, with five before it; in ratios, the mean of all (the first has no p*)",
    }
    return Page("What a step costs on a GPU", [*parts, *how(content, made)], _steps(models) if models else "")


def _steps(models: dict[str, Any]) -> str:
    names = next(iter(models.values()))["times"]
    times = [[name, *(f"{own['times'][name]['milliseconds']:.2f}" for own in models.values())] for name in names]
    ratios = [
        [name, *(f"{own['ratios'][name]:.2f} ({verdict(name, m, own['ratios'][name])})" for m, own in models.items())]
        for name in TARGETS
    ]
    return f"{markdown_table(['', *models], times)}\n\n{markdown_table(['ratio', *models], ratios)}"


def _kernels(models: dict[str, Any]) -> list[str]:
    rows = []
    for model, own in models.items():
        for schedule in ("sequential", "concurrent"):
            entry = own["times"][f"{schedule}, p* batch 128"]
            if entry["profile"] is not None:
                count = entry["members_at_once"]
                rows.append([model, f"{count}", f"{entry['milliseconds'] * count:.1f}", *_listed(entry["profile"])])
    heading = ["", "members at once", "step", "kernels in all", "by kind (in how many)"]
    return ["## Kernels of a step at p* batch 128, ms", markdown_table(heading, rows)] if rows else []


def _listed(profile: dict[str, dict[str, float]]) -> list[str]:
    """Return the milliseconds of all kernels, and those by kind with how many there are."""
    parts = sorted(profile.items(), key=lambda item: -item[1]["milliseconds"])
    total = sum(value["milliseconds"] for value in profile.values())
    return [f"{total:.1f}", ", ".join(f"{kind} {v['milliseconds']:.1f} ({v['kernels']:.0f})" for kind, v in parts)]


def _floors(models: dict[str, Any]) -> list[str]:
    rows = []
    for model, entry in models.items():
        if "floor" not in entry:
            continue
        rest = dict(entry["floor"])
        rate, bandwidth = rest.pop("products a second"), rest.pop("bytes a second")
        least = sum(rest.values())
        steps = [entry["times"][f"{name}, p* batch 128"]["milliseconds"] for name in ("concurrent", "sequential")]
        listed = ", ".join(f"{kind} {value:.2f}" for kind, value in rest.items())
        rates = f"{2e-12 * rate:.0f}", f"{1e-12 * bandwidth:.1f}"
        rows.append([model, f"{least:.2f}", listed, *rates, *(f"{least / step:.0%}" for step in steps)])
    heading = ["", "floor", "of which", "TFLOP/s", "TB/s", "concurrent, of its speed", "sequential"]
    title = "## Floor of a member's step at p* batch 128, ms (`benchmarks/floor.py`)"
    return [title, markdown_table(heading, rows)] if rows else []


def _predicting(content: dict[str, Any], part: str) -> list[str]:
    found, model = content["parts"][part], PREDICTING[part]
    target = f" (target >= {_PREDICTING_TARGETS[model]})" if model in _PREDICTING_TARGETS else ""
    rows = [
        ["a plain loop over members, ms", f"{found['plain loop']:.0f}"],
        ["`predict_proba` after a first call, ms", f"{found['predict_proba']:.0f}"],
        ["ratio", f"{found['ratio']:.2f}{target}"],
        ["largest difference of probabilities", f"{found['largest difference']:.1e}"],
    ]
    if "profile" in found:
        total, kinds = _listed(found["profile"])
        rows += [["its kernels in all, ms", total], ["by kind (in how many)", kinds]]
    title = f"## Predicting 10,000 images with {content['size']} members of {model}, in PyTorch's default precision"
    return [title, markdown_table(["", ""], rows)]

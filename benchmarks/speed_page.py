"""The page of `engine.py`: what was measured, as Markdown, beside what it must reach."""

from typing import Any

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
    met = value >= targets[model] if sign == ">=" else value <= targets[model]
    return f"target {sign} {targets[model]}: {'met' if met else 'missed'}"


def page(content: dict[str, Any], reading: str = "") -> str:
    """Return the measurements as Markdown, and what someone has to say of them first."""
    models = {model: content["parts"][model] for model in MODELS if model in content["parts"]}
    made = dict.fromkeys(f"{part['machine']}, torch {part['torch']}" for part in content["parts"].values())
    dates = ", ".join(
        f"{name} {part['date']}{f' ({commit[:12]})' if (commit := part.get('commit')) else ''}"
        for name, part in content["parts"].items()
    )
    lines = [
        "# What a step costs",
        "",
        *([reading.strip(), ""] if reading else []),
        f"`{content['command']}`, {'; '.join(made)}; every part in a run of its own, and every ratio of one run: "
        f"{dates}. Batch {content['batch']}, CIFAR-10 shapes, M = {content['size']}; medians over epochs of "
        f"{content['steps']} steps, in milliseconds per member and step, all of a step included. Ours in "
        "bf16, PreResNet164 with 18 blocks a stage, samples of p* normalised by running statistics as in the paper; "
        "the published loop's shape is eager, in PyTorch's default "
        "precision (convolutions in TF32), with its data on the GPU already. A sequential step is that of the sixth "
        "member, with five before it; sequential in ratios is the mean of all eleven, of which the first has no "
        "samples of p*.",
        *(f"Not measured yet: {part}." for part in (*MODELS, *PREDICTING) if part not in content["parts"]),
        "",
        *(_steps(models) if models else ()),
        *(line for part in PREDICTING if part in content["parts"] for line in _predicting(content, part)),
    ]
    return "\n".join(lines).strip() + "\n"


def _steps(models: dict[str, Any]) -> list[str]:
    lines = [
        f"| | {' | '.join(models)} |",
        f"|---|{'---|' * len(models)}",
    ]
    names = next(iter(models.values()))["times"]
    for name in names:
        figures = [models[model]["times"][name]["milliseconds"] for model in models]
        lines.append(f"| {name} | {' | '.join(f'{figure:.2f}' for figure in figures)} |")
    lines += ["", f"| ratio | {' | '.join(models)} |", f"|---|{'---|' * len(models)}"]
    for name in TARGETS:
        cells = [f"{models[m]['ratios'][name]:.2f} ({verdict(name, m, models[m]['ratios'][name])})" for m in models]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "Where the time goes at p* batch 128: sums over the kernels of a step, in milliseconds, and how many kernels "
        "that is. Those of several members overlap; those of one alone show what there is to overlap.",
        "",
    ]
    for model in models:
        for schedule in ("sequential", "concurrent"):
            entry = models[model]["times"][f"{schedule}, p* batch 128"]
            if entry["profile"] is not None:
                count = entry["members_at_once"]
                who = "one member alone" if count == 1 else f"{count} members"
                together = f"{entry['milliseconds'] * count:.1f} ms a step"
                lines.append(f"- {model}, {who}, {together}: {_listed(entry['profile'])}.")
    return lines + _floors({model: entry for model, entry in models.items() if "floor" in entry})


def _listed(profile: dict[str, dict[str, float]]) -> str:
    parts = sorted(profile.items(), key=lambda item: -item[1]["milliseconds"])
    total = sum(value["milliseconds"] for value in profile.values())
    listed = [f"{kind} {value['milliseconds']:.1f} in {value['kernels']:.0f}" for kind, value in parts]
    return f"{total:.1f} in all, {', '.join(listed)}"


def _floors(models: dict[str, Any]) -> list[str]:
    if not models:
        return []
    lines = [
        "",
        "The floor of a member's step at p* batch 128: products at the rate of large ones, activations and weights "
        "through memory at the speed of copies, as often as our passes read and write them, without launches or "
        "waiting (`benchmarks/floor.py`).",
        "",
    ]
    for model, entry in models.items():
        rest = dict(entry["floor"])
        rate, bandwidth = rest.pop("products a second"), rest.pop("bytes a second")
        least = sum(rest.values())
        shares = [
            f"{name} at {least / entry['times'][f'{name}, p* batch 128']['milliseconds']:.0%} of that speed"
            for name in ("concurrent", "sequential")
        ]
        listed = ", ".join(f"{kind} {value:.2f}" for kind, value in rest.items())
        lines.append(
            f"- {model}: {least:.2f} ms ({listed}) at {2e-12 * rate:.0f} TFLOP/s and {1e-12 * bandwidth:.1f} TB/s; "
            f"{', '.join(shares)}."
        )
    return lines


def _predicting(content: dict[str, Any], part: str) -> list[str]:
    predicting, model = content["parts"][part], PREDICTING[part]
    target = f" (target >= {_PREDICTING_TARGETS[model]})" if model in _PREDICTING_TARGETS else ""
    return [
        "",
        f"Predicting 10,000 images with {content['size']} members of {model}: a plain loop over members "
        f"{predicting['plain loop']:.0f} ms, `predict_proba` {predicting['predict_proba']:.0f} ms, "
        f"{predicting['ratio']:.2f} times faster{target}, after a first call, which records; both in PyTorch's default "
        "precision (products in TF32), ours with what lies between layers in half precision; "
        f"probabilities differ by at most {predicting['largest difference']:.1e}.",
        *([f"Sums over its kernels, as above: {_listed(predicting['profile'])}."] if "profile" in predicting else ()),
    ]

"""What samples of p* are normalised by, and what that does to members under way: scikit-learn's digits, PreResNet8.

    python benchmarks/batch_statistics.py [--out FOLDER] [--epochs 30]

The paper normalises samples of p* by BatchNorm's running statistics. Those trail the weights, and at a high learning
rate a member can differ from the others on p* by staying ahead of them: right in training mode, wrong in eval mode, in
which accuracy on held-out images is measured after every epoch here. By the statistics of the step's own examples, it
cannot. Needs no data set; seven minutes or so on a core.
"""

import itertools
import statistics
import warnings
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from result import facts, how, parser, publish
from sklearn.datasets import load_digits

import greedy_ensembles as ge
from greedy_ensembles.method import Statistics
from greedy_ensembles.models import named
from greedy_ensembles.paper.pages import Page
from greedy_ensembles.report.figure import GREY, NORMAL, SMALL, method_styles, new_figure, plain, write_figure
from greedy_ensembles.report.table import markdown_table
from greedy_ensembles.training import Epoch

SIZE, STRENGTH, SEEDS = 3, 0.1, (0, 100)
HIGHER = (1.0, 3.0, 10.0)  #: values of lambda_M of which only the end is shown
KINDS: dict[Statistics, str] = {
    "running": "running statistics, as in the paper",
    "batch": "statistics of the step's examples",
}


def train(kind: Statistics, strength: float, seed: int, epochs: int) -> dict[str, Any]:
    """Return each member's accuracy on held-out digits after every epoch."""
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy((images.reshape(-1, 1, 8, 8) * 255 / 16).round().astype(np.uint8))
    recipe = ge.Recipe(
        epochs=epochs,
        batch_size=64,
        weighting_batch_size=16,
        weighting_statistics=kind,
        lr_scale=1e-4,
        weight_decay=1e-5,
    )
    accuracies: dict[int, list[float]] = {}

    def keep(event: Epoch) -> None:
        assert event.validation_accuracy is not None
        accuracies.setdefault(event.member, []).append(100 * event.validation_accuracy)

    ge.fit(
        named("PreResNet8", 10, 1),
        (x, torch.from_numpy(labels)),
        size=SIZE,
        strength=strength,
        recipe=recipe,
        seed=seed,
        validation=0.2,
        device="cpu",
        progress=False,
        callbacks=[keep],
    )
    return {"statistics": kind, "strength": strength, "seed": seed, "accuracies": list(accuracies.values())}


def of(rows: list[dict[str, Any]], kind: Statistics, strength: float) -> list[dict[str, Any]]:
    """Return the rows of all seeds of a setting."""
    return [row for row in rows if (row["statistics"], row["strength"]) == (kind, strength)]


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Draw accuracy by epoch, a panel for each kind: the first member, which has no one to differ from, in grey."""
    figure = new_figure(height=2.6)
    for axis, (kind, title) in zip(figure.subplots(1, 2, sharey=True), KINDS.items(), strict=True):
        for row in of(rows, kind, STRENGTH):
            for number, (values, style) in enumerate(zip(row["accuracies"], method_styles(SIZE), strict=True), start=1):
                epochs = range(1, len(values) + 1)
                axis.plot(epochs, values, lw=1.0, color=GREY if number == 1 else style.colour, label=f"member {number}")
        axis.set_title(title, fontsize=NORMAL)
        axis.set_xlabel("epoch")
        axis.set_ylim(0, 101)
        plain(axis)
    handles, labels = figure.axes[-1].get_legend_handles_labels()
    figure.axes[-1].legend(handles[:SIZE], labels[:SIZE], fontsize=SMALL, frameon=False, loc="lower right")
    figure.axes[0].set_ylabel("held-out accuracy (%)")
    return figure


def page(content: dict[str, Any]) -> Page:
    """Return how low members were on their way, and where they ended."""
    rows = content["runs"]
    made = {
        "data": "scikit-learn's digits, a fifth held out",
        "training": f"PreResNet8, {content['epochs']} epochs, learning rate 0.1, M = {SIZE}, p* wrapped",
        "seeds": ", ".join(map(str, SEEDS)),
        "figures": "accuracy (%) on held-out digits in eval mode, of members that have others to differ from",
        "lowest": "after the first fifth of the epochs",
    }
    lines, means = [], []
    for kind, title in KINDS.items():
        others = {row["seed"]: row["accuracies"][1:] for row in of(rows, kind, STRENGTH)}
        for row in of(rows, kind, STRENGTH):
            lowest = ", ".join(f"{min(values[len(values) // 5 :]):.1f}" for values in others[row["seed"]])
            lines.append([title, str(row["seed"]), lowest, ends([row])])
        mean = statistics.fmean(value for own in others.values() for values in own for value in values)
        means.append(f"{mean:.1f} ({title})")
    higher = [[f"{strength:g}", *(ends(of(rows, kind, strength)) for kind in KINDS)] for strength in HIGHER]
    parts = [
        f"- mean over these members and all epochs: {', '.join(means)}",
        "![Held-out accuracy of three members over epochs, for both ways](statistics.png)",
        f"*Accuracy of members in eval mode, after every epoch; lambda_M = {STRENGTH}, both seeds.*",
        "## After the last epoch at a higher lambda_M, all members and seeds",
        markdown_table(["lambda_M", *KINDS.values()], higher),
    ]
    table = markdown_table(["normalised by", "seed", "lowest of members 2, 3, ...", "last"], lines)
    title = "What BatchNorm normalises samples of p* by"
    return Page(title, [*parts, *how(content, made)], f"lambda_M = {STRENGTH}:\n\n{table}")


def ends(rows: list[dict[str, Any]]) -> str:
    """Return the last accuracies of all members but the first."""
    return ", ".join(f"{values[-1]:.1f}" for row in rows for values in row["accuracies"][1:])


def main() -> None:
    """Train, print, and write where asked."""
    options = parser(__doc__)
    options.add_argument("--epochs", type=int, default=30)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "members? .* learnt next to nothing")  # which is what is shown
    settings = itertools.product(KINDS, (STRENGTH, *HIGHER), SEEDS)
    rows = [train(kind, strength, seed, arguments.epochs) for kind, strength, seed in settings]
    made = {**facts("batch_statistics.py --out results/statistics"), "epochs": arguments.epochs}
    publish(arguments.out, "statistics", page, {**made, "runs": rows})
    if arguments.out is not None:
        write_figure(draw(rows), arguments.out / "statistics.png")


if __name__ == "__main__":
    main()

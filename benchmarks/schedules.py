"""Whether the fast ways to train change the answer: MNIST, PreResNet8, M = 5, lambda_M = 0.1, wrapped p*, three seeds.

    python benchmarks/schedules.py [--statistics batch running] [--out FOLDER] [--epochs 20] [--images N]

Sequential with the paper's p* batch, concurrent with the same, and concurrent with a p* batch of 8, each evaluated on
MNIST's test images and five OOD sets. They may differ by 0.1 points of accuracy and .01 of AUC. All of that for samples
of p* normalised by the statistics of the step's examples, and by running ones as in the paper. Runs that FOLDER has
already are not done again, and its `records/schedules-reading.md`, written by hand, begins the page. Needs the data
(GREEDY_ENSEMBLES_DATA); without, it says so and ends.
"""

import itertools
import json
from typing import Any

import torch
from result import mnist, mnist_facts, mnist_parser, publish

import greedy_ensembles as ge
from greedy_ensembles.benchmark import estimate, evaluate
from greedy_ensembles.models import named
from greedy_ensembles.paper.pages import page_text

SIZE, STRENGTH, SEEDS = 5, 0.1, (0, 100, 200)
SETTINGS = (("sequential", 256), ("concurrent", 256), ("concurrent", 8))
OOD = ("uniform", "bernoulli", "gaussian", "fashion_mnist", "omniglot")
STATISTICS = {
    "batch": "Samples of p* normalised by the statistics of the step's examples",
    "running": "Samples of p* normalised by running statistics, as in the paper",
}


def train_and_evaluate(
    run: dict[str, Any], train: ge.data.ImageSet, test: ge.data.ImageSet, epochs: int, device: str
) -> dict[str, Any]:
    """Return accuracy and AUCs of one ensemble, and the accuracy of its worst member."""
    recipe = ge.Recipe.paper(
        "mnist",
        "PreResNet8",
        epochs=epochs,
        weighting_batch_size=run["p* batch"],
        weighting_statistics=run["statistics"],
        precision="bf16" if device == "cuda" else "float32",
    )
    ensemble = ge.fit(
        named("PreResNet8", 10, 1),
        train,
        size=SIZE,
        strength=STRENGTH,
        recipe=recipe,
        seed=run["seed"],
        schedule=run["schedule"],
        device=device,
        progress=False,
    )
    sets = {name: ge.data.load(name, "test", size=28, channels=1) for name in OOD}
    result = evaluate(ensemble, test, sets)
    right = ensemble.predict_proba(test.images).argmax(dim=2).cpu() == torch.from_numpy(test.labels)
    return {
        **run,
        "accuracy": 100 * result.in_domain.accuracy,
        "worst member": 100 * right.double().mean(dim=1).min().item(),
        **{found.name: found.auc for found in result.ood},
        "notes": {found.name: found.note for found in result.ood if found.note},
        "images": {found.name: found.images for found in result.sets},
    }


def page(facts: dict[str, Any], reading: str = "") -> str:
    """Return the tables of means and standard errors, and by how much the fast ways differ from the paper's."""
    rows = facts["runs"]
    images = rows[0]["images"]
    dates = ", ".join(sorted({row["date"] for row in rows}))
    made = (
        f"`{facts['command']}`, {dates}, {facts['machine']}, torch {facts['torch']}. MNIST "
        f"({facts['examples']:,} training images), PreResNet8, M = {SIZE}, lambda_M = {STRENGTH}, p* wrapped, "
        f"{facts['epochs']} epochs, bf16; mean ± standard error over seeds. Accuracy on {images['mnist']:,} test "
        "images, of the ensemble and of its worst member; AUC of mutual information against those: "
        + ", ".join(f"{name} {images[name]:,}" for name in OOD)
        + "."
    )
    parts = []
    for statistics, title in STATISTICS.items():
        own = [row for row in rows if row["statistics"] == statistics]
        parts.append("\n".join([f"## {title}", "", *(section(own) if own else ["Not measured yet."])]))
    notes = {name: note for row in rows for name, note in row["notes"].items()}
    parts += ["## How it was measured", made, "\n".join(f"{name}: {note}." for name, note in notes.items())]
    return page_text("Whether the fast ways give the same answer", reading, parts)


def section(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of one kind of statistics, and by how much its rows differ from the first."""
    names = ("accuracy", "worst member", *OOD)
    lines = [f"| schedule, p* batch | seeds | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    by_setting = {
        setting: {row["seed"]: row for row in rows if (row["schedule"], row["p* batch"]) == setting}
        for setting in SETTINGS
    }
    for setting, group in by_setting.items():
        if group:
            cells = [spelled([row[name] for row in group.values()], 4 if name in OOD else 2) for name in names]
            lines.append(f"| {setting[0]}, {setting[1]} | {', '.join(map(str, group))} | {' | '.join(cells)} |")
    lines += [
        "",
        "| less sequential | seeds | accuracy, points | within 0.1 | largest difference of AUC | on | within .01 |",
        f"|{'---|' * 7}",
    ]
    base = by_setting[SETTINGS[0]]
    for setting in SETTINGS[1:]:
        seeds = [seed for seed in by_setting[setting] if seed in base]
        if not seeds:
            continue
        changes = {
            name: estimate([by_setting[setting][seed][name] - base[seed][name] for seed in seeds]).mean
            for name in ("accuracy", *OOD)
        }
        name = max(OOD, key=lambda n: abs(changes[n]))
        within = ["yes" if abs(changes[what]) <= most else "no" for what, most in (("accuracy", 0.1), (name, 0.01))]
        lines.append(
            f"| {setting[0]}, {setting[1]} | {', '.join(map(str, seeds))} | {changes['accuracy']:+.2f} | {within[0]} | "
            f"{changes[name]:+.4f} | {name} | {within[1]} |"
        )
    return lines


def spelled(values: list[float], digits: int) -> str:
    """Return a mean with its standard error, if there is one."""
    found = estimate(values)
    error = "" if found.standard_error is None else f" ± {found.standard_error:.{digits}f}"
    return f"{found.mean:.{digits}f}{error}"


def main() -> None:
    """Train, evaluate, print, and write where asked."""
    options = mnist_parser(__doc__)
    options.add_argument("--statistics", nargs="+", choices=STATISTICS, default=list(STATISTICS))
    arguments = options.parse_args()
    if (loaded := mnist(arguments)) is None:
        return
    made = mnist_facts("schedules.py --out results/engine", arguments, loaded[0])
    file = None if arguments.out is None else arguments.out / "records" / "schedules.json"
    rows = json.loads(file.read_text())["runs"] if file is not None and file.exists() else []
    for statistics, seed, (schedule, samples) in itertools.product(arguments.statistics, SEEDS, SETTINGS):
        run = {"statistics": statistics, "schedule": schedule, "p* batch": samples, "seed": seed}
        if not any(run.items() <= row.items() for row in rows):
            found = train_and_evaluate(run, *loaded, arguments.epochs, arguments.device)
            rows.append({"date": made["date"], **found})
            publish(arguments.out, "schedules", page, {**made, "runs": rows})


if __name__ == "__main__":
    main()

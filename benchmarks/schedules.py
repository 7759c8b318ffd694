"""Whether the fast ways to train change the answer: MNIST, PreResNet8, M = 5, lambda_M = 0.1, wrapped p*, three seeds.

    python benchmarks/schedules.py [--statistics batch running] [--out FOLDER] [--epochs 20] [--images N]

Sequential with the paper's p* batch, concurrent with the same, and concurrent with a p* batch of 8, each evaluated on
MNIST's test images and five OOD sets. They may differ by 0.1 points of accuracy and .01 of AUC. All of that for samples
of p* normalised by the statistics of the step's examples, and by running ones as in the paper. Runs that FOLDER has
already are not done again, and its `records/schedules-reading.md`, written by hand, begins the page. Needs the data
(GREEDY_ENSEMBLES_DATA); without, it says so and ends.
"""

import itertools
from typing import Any

import torch
from result import how, known, mnist, mnist_facts, mnist_parser, publish

import greedy_ensembles as ge
from greedy_ensembles.benchmark import estimate, evaluate
from greedy_ensembles.models import named
from greedy_ensembles.paper.pages import Page
from greedy_ensembles.report.table import markdown_table

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


def page(content: dict[str, Any]) -> Page:
    """Return the tables of means and standard errors, and by how much the fast ways differ from the paper's."""
    rows = content["runs"]
    images = rows[0]["images"]
    made = {
        "training": f"MNIST ({content['examples']:,} training images), PreResNet8, M = {SIZE}, lambda_M = {STRENGTH}, "
        f"p* wrapped, {content['epochs']} epochs, bf16",
        "figures": "mean ± standard error over seeds; accuracy of the ensemble and of its worst member",
        "AUC": f"of mutual information against {images['mnist']:,} test images: "
        + ", ".join(f"{name} {images[name]:,}" for name in OOD),
        **{name: note for row in rows for name, note in row["notes"].items()},
    }
    parts = []
    for statistics, title in STATISTICS.items():
        own = [row for row in rows if row["statistics"] == statistics]
        parts += [f"## {title}", *(section(own) if own else ["Not measured yet."])]
    dates = ", ".join(sorted({row["date"] for row in rows}))
    return Page("Whether the fast ways give the same answer", [*parts, *how(content | {"date": dates}, made)])


def section(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of one kind of statistics, and by how much its rows differ from the first."""
    names = ("accuracy", "worst member", *OOD)
    by_setting = {
        setting: {row["seed"]: row for row in rows if (row["schedule"], row["p* batch"]) == setting}
        for setting in SETTINGS
    }
    means = [
        [
            f"{setting[0]}, {setting[1]}",
            ", ".join(map(str, group)),
            *(spelled([row[name] for row in group.values()], 4 if name in OOD else 2) for name in names),
        ]
        for setting, group in by_setting.items()
        if group
    ]
    base, differences = by_setting[SETTINGS[0]], []
    for setting in SETTINGS[1:]:
        seeds = [seed for seed in by_setting[setting] if seed in base]
        if not seeds:
            continue
        changes = {
            name: estimate([by_setting[setting][seed][name] - base[seed][name] for seed in seeds]).mean
            for name in ("accuracy", *OOD)
        }
        name = max(OOD, key=lambda n: abs(changes[n]))
        points, areas = (
            "yes" if abs(changes[key]) <= most else "no" for key, most in (("accuracy", 0.1), (name, 0.01))
        )
        row = [f"{setting[0]}, {setting[1]}", ", ".join(map(str, seeds)), f"{changes['accuracy']:+.2f}", points]
        differences.append([*row, f"{changes[name]:+.4f}", name, areas])
    heading = [
        "less sequential",
        "seeds",
        "accuracy, points",
        "within 0.1",
        "largest difference of AUC",
        "on",
        "within .01",
    ]
    return [markdown_table(["schedule, p* batch", "seeds", *names], means), markdown_table(heading, differences)]


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
    rows = known(arguments.out, "schedules").get("runs", [])
    for statistics, seed, (schedule, samples) in itertools.product(arguments.statistics, SEEDS, SETTINGS):
        run = {"statistics": statistics, "schedule": schedule, "p* batch": samples, "seed": seed}
        if not any(run.items() <= row.items() for row in rows):
            found = train_and_evaluate(run, *loaded, arguments.epochs, arguments.device)
            rows.append({"date": made["date"], **found})
            publish(arguments.out, "schedules", page, {**made, "runs": rows})


if __name__ == "__main__":
    main()

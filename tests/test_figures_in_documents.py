"""Figures that the documents name, against the records in results/."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRAMBLED = (
    "[CIFAR-10](results/p-star-batch/p-star-batch.md), VGG16BN, M = 5, 30 epochs, "
    r"p\* of scrambled images, lambda_M = 1"
)
_SCORES = ("mutual_information", "predictive_entropy", "energy")
HEADLINES = {
    "[MNIST](results/mnist/mnist.md), PreResNet8, M = 5, lambda_M = 0.1": "mnist/records/m-5",
    "[SVHN](results/svhn/svhn.md), VGG16BN, M = 5, lambda_M = 1": "svhn/records/vgg16bn-m-5",
    "[CIFAR-10](results/cifar10/cifar10.md), VGG16BN, M = 11, lambda_M = 5": "cifar10/records/vgg16bn-m-11",
    SCRAMBLED: "p-star-batch/records/cifar-10-vgg16bn-m-5-30-epochs-p-batch-32",
}


def headline(setting):
    """Return the seeds and figures of a row of the README, Deep Ensembles' and the method's, from its record."""
    content = json.loads((ROOT / "results" / f"{HEADLINES[setting]}.json").read_text())
    greedy = f"greedy, {setting.split(', ')[-1]}" + ", p* = scramble" * (setting == SCRAMBLED)

    def figure(rows, method, metric, factor=1, digits=3, kind=""):
        (found,) = (row["figures"][metric] for row in rows if row["method"] == method and row["set"].endswith(kind))
        error = found["standard_error"]
        around = "" if error is None else f"±{factor * error:.{digits}f}"
        return f"{factor * found['mean']:.{digits}f}{around}"

    cells = [
        (content["means"], "auc", 1, 3, " synthetic"),
        (content["means"], "auc", 1, 3, " natural"),
        (content["means"], "fpr95", 1, 3, " natural"),
        (content["in_domain"], "accuracy", 100, 2),
        (content["in_domain"], "nll", 100, 2),
    ]
    (seeds,) = {row["figures"]["accuracy"]["seeds"] for row in content["in_domain"]}
    pairs = [[figure(rows, method, *how) for method in ("Deep Ensembles", greedy)] for rows, *how in cells]
    return [f"{seeds} seed{'s' if seeds > 1 else ''}", *map(" → ".join, pairs)]


@pytest.mark.parametrize("setting", HEADLINES)
def test_headline_results_are_those_of_the_records(setting):
    seeds, *cells = headline(setting)
    assert f"| {' | '.join([f'{setting}, {seeds}', *cells])} |" in (ROOT / "README.md").read_text()


def test_the_answer_above_all_results_is_that_of_the_records():
    told = " ".join((ROOT / "results" / "README.md").read_text().replace("0.", ".").split())
    mnist, svhn, cifar, _ = map(headline, HEADLINES)
    (low, high), (fpr, worse) = ([side.removeprefix("0") for side in cell.split(" → ")] for cell in cifar[2:4])
    assert re.sub("±[.0-9]+", "", mnist[2]).replace("0.", ".") in told
    assert svhn[2].replace("0.", ".") in told
    assert f"AUC falls from {low} to {high} and FPR95 rises from {fpr} to {worse}" in told
    assert cifar[5] in told


def test_what_the_readme_says_against_the_method_is_in_the_records():
    told = (ROOT / "README.md").read_text()
    rows = json.loads((ROOT / "results/cifar10/records/vgg16bn-m-11.json").read_text())["ood"]
    natural = {row["set"]: {} for row in rows if row["kind"] == "natural"}
    for row in rows:
        if row["kind"] == "natural":
            natural[row["set"]][row["method"]] = row["figures"]["fpr95"]["mean"]
    worse = [each["greedy, lambda_M = 5"] > each["Deep Ensembles"] for each in natural.values()]
    assert f"worse on {sum(worse)} of {len(worse)} sets" in told
    digits = {
        row["method"]: row for row in json.loads((ROOT / "results/methods/records/methods.json").read_text())["digits"]
    }
    first = "random forest", "5 neighbours", "one network"
    simple = [digits[name]["other_score_auc"]["mean"] for name in first]
    greedy, deep = (digits[name]["other_MI_auc"]["mean"] for name in ("greedy", "deep"))
    spelled = [f"{value:.3f}".removeprefix("0") for value in (*simple, greedy, deep)]
    said = "AUC {}, {} and {} [on digits](results/methods/methods.md), where greedy has {} and Deep Ensembles {} |"
    assert "first a random forest, nearest neighbours or one network's entropy: " + said.format(*spelled) in told
    scores = {"one network": "predictive_entropy", "one network, features": "mahalanobis", "deep": "mahalanobis"}
    assert {name: digits[name]["score"] for name in scores} == scores
    entropy, alone, five = (f"{digits[name]['other_score_auc']['mean']:.3f}".removeprefix("0") for name in scores)
    page = " ".join((ROOT / "results/methods/methods.md").read_text().split())
    assert "**One network** is level with five, Deep Ensembles" in page
    one = f"by its entropy ({entropy}; their MI {spelled[4]}, greedy's {spelled[3]}) and by the Mahalanobis distance"
    assert f"{one} of its features ({alone}; theirs {five}," in page
    study = (ROOT / "results/guarantee/guarantee.md").read_text()
    assert "| reverse KL | point estimate | +0.04 |" in study
    assert "| reverse KL | expectation | +0.93 |" in study
    assert "(rank correlation +.04; the expectation that it stands in for has +.93)" in " ".join(told.split())


def test_what_is_said_of_scores_on_cifar10_is_in_the_records():
    """Means over natural sets by mutual information and energy, and over noise by energy."""
    folder = ROOT / "results" / "p-star-batch" / "records"
    noise = ("uniform", "bernoulli", "gaussian", "blobs")

    def mean(name, score, of_noise=False):
        files = (folder / f"cifar10-VGG16BN-M5-{name}-seed{seed}.json" for seed in (0, 100, 200))
        records = [json.loads(file.read_text()) for file in files]
        seen = [one for record in records for one in record["evaluation"]["ood"] if (one["name"] in noise) == of_noise]
        return sum(one["by_score"][score][0] for one in seen) / len(seen)

    def of_noise(name):
        """The least and the most that a seed has in the mean over noise other than blobs, by mutual information."""
        files = (folder / f"cifar10-VGG16BN-M5-{name}-seed{seed}.json" for seed in (0, 100, 200))
        every = (
            [one for one in json.loads(f.read_text())["evaluation"]["ood"] if one["name"] in noise[:3]] for f in files
        )
        means = [sum(one["auc"] for one in each) / 3 for each in every]
        return min(means), max(means)

    deep, greedy = "deep-30epochs-concurrent-bf16", "greedy-1-{}batch32-batch-statistics-30epochs-concurrent-bf16"
    scrambled, wrapped = greedy.format("scramble-"), greedy.format("")
    cells = (deep, "mutual_information"), (scrambled, "mutual_information"), (deep, "energy")
    plain, gained, energy = (f"{mean(*cell):.3f}".removeprefix("0") for cell in cells)
    for name in ("README.md", "results/README.md", "docs/method.md"):
        told = " ".join((ROOT / name).read_text().split())
        assert f"{plain} → {gained}" in told, name
        assert name == "docs/method.md" or re.search(rf"energy,? (Deep Ensembles )?ha(s|ve) {energy}", told), name
    low, high = (f"{mean(one, 'energy', of_noise=True):.2f}".removeprefix("0") for one in (wrapped, deep))
    reading = " ".join((folder / "reading.md").read_text().split())
    by_score = (
        ", ".join(f"{mean(name, score):.3f}".removeprefix("0") for score in _SCORES) for name in (deep, scrambled)
    )
    assert "Deep Ensembles {}; scrambled images with 32 samples {}.".format(*by_score) in reading
    least, most = (f"{value:.3f}".removeprefix("0") for value in of_noise(scrambled))
    assert (least, most) == (".993", "1.000")
    assert f"p\\* of scrambled images alone: {least} to {most})" in " ".join(
        (ROOT / "results/README.md").read_text().split()
    )
    assert f"({least} with scrambled images;" in (ROOT / "README.md").read_text()
    told = " ".join((ROOT / "docs" / "gotchas.md").read_text().split())
    assert f"an AUC of {low} on CIFAR-10, where Deep Ensembles' has {high}" in told


def test_figures_of_two_moons_are_those_of_the_results():
    rows = json.loads((ROOT / "results" / "two-moons" / "records/two-moons.json").read_text())
    deep, weak, default, strong = spelled = [f"{row['mi_far']:.2f}" for row in rows]
    told = " ".join((ROOT / "README.md").read_text().split())
    assert f"Deep Ensembles have {deep} nats of at most 0.69, the method {weak} at lambda_M = 0.1, " in told
    assert f"{default} at 1 and {strong} at 10" in told
    assert f"{', '.join(spelled[:-1])} and {spelled[-1]} nats" in (ROOT / "docs" / "method.md").read_text()


def test_figures_of_weighting_distributions_are_those_of_the_results():
    page = (ROOT / "results" / "weighting" / "weighting.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    found = {(row[0], row[1]): row for row in rows if len(row) == 9}

    def figures(name, method):
        accuracy, _, *means = (cell.partition(" ")[0] for cell in found[name, method][3:7])
        return [text.removeprefix("0") for text in means], accuracy

    told = (ROOT / "docs" / "method.md").read_text()
    for name, p in {
        "(Deep Ensembles)": None,
        "Gaussian, as it is": ("none", "none"),
        "Gaussian, clipped": ("clip", "clip"),
        "Gaussian, wrapped": ("wrap", "wrap"),
        "uniform": ("uniform", "uniform"),
        "other images": ("cifar10", "svhn/test"),
    }.items():
        labels = [
            f"greedy, lambda_M = {strength}, p* = {each}" if each else "Deep Ensembles"
            for strength, each in zip(("0.1", "3"), p or (None, None), strict=True)
        ]
        digits, _ = figures("MNIST, PreResNet8, M = 5", labels[0])
        objects, accuracy = figures("CIFAR-10, VGG16BN, M = 5, 30 epochs", labels[1])
        assert f"| {name} | {' | '.join([*digits, *objects, accuracy])} |" in told

"""How much the figure for "Gaussian noise" depends on how it is drawn: MNIST, PreResNet8, M = 5.

    python benchmarks/gaussian_images.py [--out FOLDER] [--epochs 20] [--images N]

The paper says that its Gaussian images were generated once, not how. Deep Ensembles and greedy ones are judged on ten
ways to draw them: AUC of mutual information against MNIST's test images. Needs the data (GREEDY_ENSEMBLES_DATA).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from result import how, mnist, mnist_facts, mnist_parser, publish

import greedy_ensembles as ge
from greedy_ensembles.models import named
from greedy_ensembles.paper.pages import Page
from greedy_ensembles.report.table import markdown_table

SIZE, COUNT, STRENGTH, MODEL = 5, 2000, 0.1, "PreResNet8"
MEAN, STD = 0.1307, 0.3081  # of MNIST's pixels on [0, 1]
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def _clipped(mean: float, std: float) -> Draw:
    return lambda rng, shape: rng.normal(mean, std, shape).clip(0, 1)


#: Images on the scale [0, 1], which are normalised as digits are.
WAYS: dict[str, Draw] = {
    "mean 1/2, deviation 1/4, cut off at black and white: this benchmark's": _clipped(0.5, 0.25),
    "mean 1/2, deviation 1/2, cut off: as the authors draw it for MNIST": _clipped(0.5, 0.5),
    "mean 1/2, deviation 1, cut off": _clipped(0.5, 1.0),
    "mean 0, deviation 1, cut off": _clipped(0.0, 1.0),
    "mean and deviation of the digits' pixels, cut off": _clipped(MEAN, STD),
    "mean 0, deviation 1, not cut off": lambda rng, shape: rng.normal(0, 1, shape),
    "mean 0, deviation 1, as the network's input, normalised no more": lambda rng, shape: (
        MEAN + STD * rng.normal(0, 1, shape)
    ),
    "mean 0, deviation 1, cast to 8 bits (0, 1 or 255)": lambda rng, shape: (
        rng.normal(0, 1, shape).astype(np.int64) % 256 / 255
    ),
    "mean 0, deviation 1 of 255, cut off: nearly black": _clipped(0.0, 1 / 255),
    "mean 128, deviation 1 of 255: nearly grey": _clipped(128 / 255, 1 / 255),
}


def judged(images: ge.data.ImageSet, test: ge.data.ImageSet, epochs: int, device: str) -> dict[str, dict[str, float]]:
    """Return the AUC of both methods, by how the images were drawn."""
    recipe = ge.Recipe.paper(
        "mnist",
        MODEL,
        epochs=epochs,
        weighting_batch_size=8,
        weighting_statistics="batch",
        precision="bf16" if device == "cuda" else "float32",
    )
    found: dict[str, dict[str, float]] = {}
    for name, options in (("Deep Ensembles", {"method": "deep"}), ("greedy", {"strength": STRENGTH})):
        settings: dict[str, Any] = {"size": SIZE, "recipe": recipe, "device": device, "progress": False, **options}
        ensemble = ge.fit(named(MODEL, 10, 1), images, schedule="concurrent", **settings)
        inside = ensemble.uncertainty(test.images).epistemic
        ensemble.inputs = None  # some ways leave the range of pixels, which would be refused
        for way, draw in WAYS.items():
            noise = draw(np.random.default_rng(0), (COUNT, 1, 28, 28)).astype(np.float32)
            outside = ensemble.uncertainty(noise).epistemic
            found.setdefault(way, {})[name] = float(ge.metrics.auroc(inside, outside))
    return found


def page(content: dict[str, Any]) -> Page:
    """Return the table."""
    rows = [[way, f"{row['Deep Ensembles']:.3f}", f"{row['greedy']:.3f}"] for way, row in content["auc"].items()]
    made = {
        "training": f"MNIST ({content['examples']:,} training images), {MODEL}, M = {SIZE}, {content['epochs']} "
        f"epochs, seed 0; greedy with lambda_M = {STRENGTH}",
        "figures": f"AUC of mutual information, {COUNT:,} images of noise against {content['test']:,} test images",
        "numbers": "on the scale from black, 0, to white, 1, unless they say otherwise",
    }
    summary = markdown_table(["drawn with", "Deep Ensembles", "greedy"], rows)
    return Page("How Gaussian noise is drawn", how(content, made), summary)


def main() -> None:
    """Train, judge, print, and write where asked."""
    arguments = mnist_parser(__doc__).parse_args()
    if (loaded := mnist(arguments)) is None:
        return
    train, test = loaded
    content = {
        **mnist_facts("gaussian_images.py --out results/gaussian", arguments, train),
        "test": len(test),
        "auc": judged(train, test, arguments.epochs, arguments.device),
    }
    publish(arguments.out, "gaussian", page, content)


if __name__ == "__main__":
    main()

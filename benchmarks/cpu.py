"""What is promised for the CPU: training beside a plain loop, the method, schedules, stacked members, predictions.

    python benchmarks/cpu.py [--out FOLDER]

Every figure is a ratio of times that took turns in this run; the machine should have nothing else to do.
"""

import contextlib
import copy
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import stacked
import torch
from engine import BATCH, SIZE, algorithm, engine_of, in_turn, inference
from result import facts, parser, publish
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import greedy_ensembles as ge
from greedy_ensembles.engines.plain import PlainEngine
from greedy_ensembles.models.fine_tuning import Headed
from greedy_ensembles.paper.pages import page_text
from greedy_ensembles.report.table import markdown_table
from greedy_ensembles.training.recipe import learning_rate_factor

STEPS, SAMPLES = 4, BATCH // 8
MEMBERS = (5, 10, 20, 50)
_AGAIN = 200
_TURNS: dict[str, Any] = {"repeats": 15, "typical": min}  # which other programs disturb least


def epoch_of(samples: int | None, bank: int) -> Callable[[], object]:
    """Return an epoch of one member of PreResNet8 with so many before it."""
    of = algorithm("PreResNet8", samples, "cpu", STEPS * BATCH, side=28)
    engine, plan = engine_of(of, bank, 1, lambda members, step, _: PlainEngine(members, step))
    return partial(engine.train_epoch, plan)


def table() -> tuple[float, float]:
    """Return training Deep Ensembles on a small table over a plain loop that selects epochs alike, and in a folder."""
    x = torch.randn(1000, 20, generator=torch.Generator().manual_seed(0))
    y = (x[:, :3].sum(dim=1) > 0).long()
    recipe, size = ge.Recipe(epochs=20), 5
    train, held_out = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).split([900, 100])

    def fit(run_dir: str | None = None) -> None:
        options: dict[str, Any] = {"size": size, "method": "deep", "recipe": recipe, "run_dir": run_dir}
        ge.fit(partial(ge.models.MLP, 20), (x, y), progress=False, device="cpu", **options)

    def fit_in_folder() -> None:
        with tempfile.TemporaryDirectory() as folder:
            fit(folder)

    def loop() -> None:
        for _ in range(size):
            model = ge.models.MLP(20)
            optimizer = torch.optim.SGD(
                model.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay
            )
            best, weights = -1.0, model.state_dict()
            for epoch in range(recipe.epochs):
                model.train()
                batches = train[torch.randperm(len(train))].split(recipe.batch_size)
                for number, batch in enumerate(batches):
                    for group in optimizer.param_groups:
                        group["lr"] = recipe.lr * learning_rate_factor(recipe, epoch + number / len(batches))
                    optimizer.zero_grad()
                    cross_entropy(model(x[batch]), y[batch]).backward()
                    optimizer.step()
                model.eval()
                with torch.no_grad():
                    score = (model(x[held_out]).argmax(dim=1) == y[held_out]).float().mean().item()
                if score >= best:
                    best, weights = score, copy.deepcopy(model.state_dict())
            model.load_state_dict(weights)

    ours, theirs, in_folder = in_turn(fit, loop, fit_in_folder, **_TURNS)
    return ours / theirs, in_folder / ours


def small_cnn() -> nn.Sequential:
    """Return a network whose steps are neither stacked nor large."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(32, 10)),
    )


def together(method: str) -> float:
    """Return training a small CNN concurrently over sequentially."""
    x, y = torch.rand(600, 1, 16, 16, generator=torch.Generator().manual_seed(0)), torch.arange(600) % 10
    recipe = ge.Recipe(epochs=2, batch_size=64)
    options: dict[str, Any] = {"weighting": ge.weighting.FromData(x)} if method == "greedy" else {}
    fit = partial(
        ge.fit, small_cnn, (x, y), size=5, method=method, recipe=recipe, progress=False, device="cpu", **options
    )
    concurrent, sequential = in_turn(
        lambda: fit(schedule="concurrent"), lambda: fit(schedule="sequential"), **{**_TURNS, "repeats": 5}
    )
    return concurrent / sequential


def heads(images: int = 512, epochs: int = 10, repeats: int = 3) -> dict[str, float]:
    """Return training five heads on one frozen backbone over training one, and over a member with its own backbone."""
    labels = torch.arange(images) % 10
    noise = torch.randint(50, (images, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    x = (20 * labels[:, None, None, None] + noise).byte()
    backbone = nn.Sequential(*list(ge.models.PreResNet(20).children())[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    make_head = partial(nn.Linear, 64, 10)
    shared = ge.models.heads(backbone, make_head)
    recipe = ge.Recipe(epochs=epochs, lr=0.01)
    fit = partial(ge.fit, data=(x, labels), recipe=recipe, device="cpu", progress=False)
    five, one, member = in_turn(
        partial(fit, shared, size=5),
        partial(fit, shared, size=1),
        partial(fit, lambda: Headed(copy.deepcopy(shared.backbone), make_head()), size=1, method="deep"),
        repeats=repeats,
    )
    return {"one head": five / one, "one member that runs its backbone in every batch": five / member}


def coupling(earlier: int) -> Callable[[], object]:
    """Return what computes the diversity term and its gradient against so many members, again and again."""
    outputs = torch.randn(BATCH, 10).softmax(1).requires_grad_()
    bank = torch.randn(earlier, BATCH, 10).softmax(2)
    return lambda: [ge.diversity_term(outputs, bank, 1.0, 100).backward() for _ in range(_AGAIN)]


def small_networks() -> float:
    """Return a plain loop over `predict_proba`, of the two-moons network and batches of 64 points."""
    ensemble, points = ge.Ensemble.from_members([ge.models.MLP(2) for _ in range(SIZE)]), torch.randn(1000, 2)

    @torch.no_grad()
    def loop() -> Tensor:
        return torch.stack([torch.cat([member(x).softmax(1) for x in points.split(64)]) for member in ensemble])

    taken = in_turn(loop, lambda: ensemble.predict_proba(points, 64), **_TURNS)
    return taken[0] / taken[1]


def measure() -> dict[str, Any]:
    """Return all ratios."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    deep, greedy = in_turn(epoch_of(None, 0), epoch_of(SAMPLES, 5), **_TURNS)
    taken = in_turn(*map(coupling, MEMBERS), **_TURNS)
    costs = {k: cost / _AGAIN for k, cost in zip(MEMBERS, taken, strict=True)}
    of_loop, of_folder = table()
    found: dict[str, Any] = {
        "fit over a plain loop": of_loop,
        "fit with a run folder over without": of_folder,
        "concurrent over sequential": {method: together(method) for method in ("deep", "greedy")},
        "heads": heads(),
        "greedy over deep": greedy / deep,
        "coupling, of a step": costs[MEMBERS[-1]] / (deep / STEPS),
        "coupling, over that against the fewest": {str(k): cost / costs[MEMBERS[0]] for k, cost in costs.items()},
        "plain loop over predict_proba": inference("PreResNet20", "cpu", 256, 64, **_TURNS)["ratio"],
        "the same, of a small network": small_networks(),
    }
    torch.set_num_threads(threads)
    return {**found, "stacked": {str(count): rows for count, rows in stacked.ratios().items()}}


def _facts(content: dict[str, Any]) -> list[list[str]]:
    return [
        ["command", f"`{content['command']}`"],
        ["date, commit", f"{content['date']}, {content['commit']}"],
        ["machine", f"{content['machine']}, torch {content['torch']}"],
        ["ratios", "of times that took turns in one run; in the first table, of the fastest of 15"],
        ["networks of the first table", "PreResNet8 on 28x28 images, one thread; predictions: PreResNet20 on 32x32"],
        ["the second table", "`benchmarks/stacked.py`: 2-128-128-2, 300 points; targets are judged by first deciles"],
    ]


def page(content: dict[str, Any], reading: str = "") -> str:
    """Return the ratios as Markdown, beside what they must reach, and what someone has to say of them first."""
    linear = content["coupling, over that against the fewest"]
    lines = [
        "| | ratio | |",
        "|---|---|---|",
        *_training(content),
        _row(
            f"a step at p* batch {SAMPLES} over one of Deep Ensembles, batch {BATCH}", content["greedy over deep"], 1.3
        ),
        f"| the coupling alone against {MEMBERS[-1]} members, of a step | {content['coupling, of a step']:.2%} | "
        f"{_verdict(content['coupling, of a step'] < 0.05, '< 5 %')} |",
        f"| its cost against {', '.join(linear)} members over that against {MEMBERS[0]} | "
        f"{', '.join(f'{ratio:.1f}' for ratio in linear.values())} | at most linear: "
        f"{', '.join(f'{k / MEMBERS[0]:g}' for k in MEMBERS)} |",
        f"| predicting with {SIZE} members of PreResNet20, a plain loop over `predict_proba` | "
        f"{content['plain loop over predict_proba']:.2f} | "
        f"{_verdict(content['plain loop over predict_proba'] >= 1, '>= 1')} |",
        f"| the same of the two-moons network, 64 points a batch | {content['the same, of a small network']:.2f} | |",
    ]
    stacks = [
        f"## Training {SIZE} members of the two-moons network over training one",
        "",
        "| threads | | over | median | first decile | |",
        "|---|---|---|---|---|---|",
    ]
    for threads, rows in content["stacked"].items():
        for row in rows:
            judged = row["what"].endswith("concurrent") and row["what"].split(",")[0] == row["over"].split(",")[0]
            verdict = _verdict(row["first decile"] <= stacked.TARGET, f"<= {stacked.TARGET}") if judged else ""
            stacks.append(
                f"| {threads} | {row['what']} | {row['over']} | {row['median']:.2f} | {row['first decile']:.2f} | "
                f"{verdict} |"
            )
    made = ["## How it was measured", markdown_table(["", ""], _facts(content))]
    return page_text("What it costs on a CPU", reading, ["\n".join(stacks), *made], "\n".join(lines))


def _training(content: dict[str, Any]) -> list[str]:
    """Return what `ge.fit` as a whole takes, if that was measured."""
    if "fit over a plain loop" not in content:
        return []
    schedules = content["concurrent over sequential"]
    return [
        _row(
            "`ge.fit`, Deep Ensembles on a table of 1,000 x 20 (M = 5, 20 epochs), over a plain PyTorch loop with the "
            "same selection of epochs",
            content["fit over a plain loop"],
            1.3,
        ),
        f"| the same with a run folder over without | {content['fit with a run folder over without']:.2f} | |",
        _row("a small CNN (M = 5), Deep Ensembles concurrent over sequential", schedules["deep"], 1.0),
        "| the same, greedy, where one member more sees samples of p*: 10 batches a step instead of 9 | "
        f"{schedules['greedy']:.2f} | |",
        *(_row(f"five heads on one backbone over {over}", r, 1.3) for over, r in content.get("heads", {}).items()),
    ]


def _row(name: str, value: float, most: float) -> str:
    return f"| {name} | {value:.2f} | {_verdict(value <= most, f'<= {most:g}')} |"


def _verdict(met: bool, target: str) -> str:
    return f"target {target}: {'met' if met else 'missed'}"


def run(out: Path | None) -> None:
    """Measure, print, and write where asked."""
    publish(out, "cpu", page, {**facts("cpu.py --out results/engine"), **measure()})


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run(parser(__doc__).parse_args().out)

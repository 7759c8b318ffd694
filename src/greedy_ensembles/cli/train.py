"""``greedy-ensembles train``: data of one's own, or any network on any published set by the paper's recipe."""

import ast
import dataclasses
import difflib
import inspect
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from greedy_ensembles.cli.app import GOES_ON, DataFolder, Device, Quiet, check_folder, command, leads, say

if TYPE_CHECKING:
    from greedy_ensembles.cli.given import Task
    from greedy_ensembles.training import Recipe


def _list_fields(asked: list[str] | None) -> list[str] | None:
    if "help" not in (asked or []):
        return asked
    from greedy_ensembles.training import Recipe

    text = inspect.getdoc(Recipe) or ""
    told = dict(re.findall(r"^    (\w+): (.*(?:\n        .*)*)", text.partition("Attributes:\n")[2], flags=re.M))
    table = Table.grid(padding=(0, 2))
    for field in dataclasses.fields(Recipe):
        table.add_row(f"{field.name}={field.default}", " ".join(told[field.name].split()))
    console = Console(markup=False, highlight=False)
    console.print(table)
    console.print("These are the defaults of ge.Recipe. Each kind of data has its own recipe, which --set changes.")
    raise typer.Exit


@command("train", interrupted=GOES_ON)
def train(
    data: Annotated[
        str,
        typer.Argument(
            help="A folder of pictures with a folder for each class, or a zip or tar of one; an .npz of images x and "
            "labels y; a .csv table; or the name of a published set (`data list`), whose train split is used."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The run folder; a run there is resumed, or extended to a larger size.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="PreResNet8, PreResNet20, ..., VGG16BN, WideResNet28x10, or package:function. Default for data of "
            "your own: PreResNet8 for images, an MLP for tables."
        ),
    ] = None,
    size: Annotated[int, typer.Option(help="M, the number of members.")] = 5,
    method: Annotated[
        str, typer.Option(help="The name of a method: greedy is the paper's, deep is Deep Ensembles.")
    ] = "greedy",
    strength: Annotated[float | None, typer.Option(help="lambda_M, how strongly members repel; default: 1.")] = None,
    weighting: Annotated[
        str | None,
        typer.Option(
            help="p*: wrap (the paper's), clip, none, uniform, scramble, half, or a data set; default: that of ge.fit."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of a table: the column that holds the classes.")] = None,
    leave_out: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Of a table: a column that is not used.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="What images to make of pictures of your own; default: 3x32x32.")
    ] = None,
    test: Annotated[
        float | None,
        typer.Option(
            help="Of data of your own: the share held out of training, to be judged and calibrated on. Default: the "
            "folder test, else 0.2."
        ),
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(help="Share that selects each member's best epoch. Default: the folder val, else 0.1."),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's p*, its statistics for p*, and its network of that name.")
    ] = False,
    three_channels: Annotated[
        bool, typer.Option("--three-channels", help="Grey images as three equal channels, as the paper has MNIST.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Where all random numbers come from; repetitions: at least M apart.")] = 0,
    schedule: Annotated[str, typer.Option(help="sequential (the paper's) or concurrent.")] = "sequential",
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="A field of the recipe to change, as in --set epochs=20; --set help lists them.",
            callback=_list_fields,
            is_eager=True,
        ),
    ] = None,
    images: Annotated[int | None, typer.Option(help="Train on the first so many images of a published set.")] = None,
    device: Device = None,
    root: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Train an ensemble on data of your own, or on a published set."""
    from greedy_ensembles.checks import check_count
    from greedy_ensembles.cli.given import own_task
    from greedy_ensembles.data import SETS, ImageSet
    from greedy_ensembles.method import as_coupling
    from greedy_ensembles.paper.images import named_weighting
    from greedy_ensembles.runs import load_run
    from greedy_ensembles.training import fit

    check_folder(out)
    check_count("--size", size, least=1)
    if not (coupled := as_coupling(method).sees != "none"):
        _refuse({"weighting": weighting, "strength": strength}, f"is for members that meet, not --method {method}")
    changes = _changes(change or [])  # before pictures are read, which may take a while
    of_own: dict[str, Any] = {"target": target, "leave_out": leave_out or [], "shape": shape, "test": test}
    of_sets: dict[str, Any] = {"paper": paper, "three_channels": three_channels, "images": images}
    if own := data not in SETS:
        _refuse(of_sets, "is for published sets")
        task = own_task(data, model, changes, validation, **of_own)
    else:
        _refuse(of_own, f"is for data of your own, and {data} is a published set")
        task = _published(data, model, changes, validation, root, **of_sets)
    p_star = None
    if name := weighting or ("wrap" if paper and coupled else None):
        if not isinstance(task.data, ImageSet):
            raise ValueError(f"--weighting {name} is for images; leave it out for a table")
        p_star = named_weighting(name, task.data, root)
    try:
        ensemble = fit(
            task.make_model,
            task.data,
            size=size,
            method=method,
            strength=1.0 if strength is None else strength,
            weighting=p_star,
            recipe=task.recipe,
            seed=seed,
            validation=task.validation,
            run_dir=out,
            schedule=schedule,
            device=device,
            progress=not quiet,
        )
    except TypeError as error:  # of the model, as a rule, which may be the user's own
        raise ValueError(str(error)) from error
    if own and leads():
        task.keep_held_out(out, seed)
    members = load_run(out).members
    found = sorted(right for member in members if (right := member.get("validation_accuracy")) is not None)
    alone = f", each right on {found[0]:.0%} to {found[-1]:.0%} of validation examples" if found else ""
    print(f"{len(ensemble)} member{'s' if len(ensemble) > 1 else ''} in {out}{alone}")


def _refuse(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value not in (None, False, []):
            raise ValueError(f"--{name.replace('_', '-')} {why}; leave it out")


def _published(
    dataset: str,
    model: str | None,
    changes: dict[str, Any],
    validation: float | None,
    root: Path | None,
    *,
    paper: bool,
    three_channels: bool,
    images: int | None,
) -> "Task":
    from greedy_ensembles.cli.given import VALIDATION_SHARE, Task, network
    from greedy_ensembles.data import SETS, load
    from greedy_ensembles.paper.images import cut
    from greedy_ensembles.paper.published import PUBLISHED
    from greedy_ensembles.training import Recipe

    if "train" not in SETS[dataset].counts:
        trained = ", ".join(name for name, entry in SETS.items() if "train" in entry.counts)
        raise ValueError(f"{dataset} is a set of OOD images and has nothing to train on; these have: {trained}")
    if model is None:
        raise ValueError(
            f"--model must name a network for {dataset}, such as PreResNet8 (the paper's for MNIST), PreResNet20 or "
            "VGG16BN"
        )
    data = load(dataset, "train", root)
    if images is not None and not 1 <= images <= len(data):
        raise ValueError(f"--images must be between 1 and the {len(data):,} of {dataset}, got {images}")
    data = data if images is None else cut(data, images)
    grey = data.images.shape[1] == 1
    data = data.with_channels(3) if three_channels else data
    make_model = network(model, data)
    if not paper:
        changes = {"weighting_statistics": Recipe.weighting_statistics, **changes}
    recipe = _recipe(dataset, model, grey, changes)
    if data.note:
        say(f"{dataset}: {data.note}")
    if model in PUBLISHED and paper:
        make_model = partial(make_model, **PUBLISHED[model])
    elif model in PUBLISHED:
        other = ", ".join(f"{name}={value}" for name, value in PUBLISHED[model].items())
        say(f"{model} is that of its name; that of the paper's figures (--paper) has {other}.")
    return Task(data, make_model, recipe, VALIDATION_SHARE if validation is None else validation)


def _recipe(dataset: str, model: str, grey: bool, changes: dict[str, Any]) -> "Recipe":
    """Return the paper's recipe for the pair, or that of the nearest pair the paper has, and say so."""
    from greedy_ensembles.training import Recipe

    pair = dataset, model
    try:
        Recipe.paper(*pair)
    except ValueError:
        nearest = model if model in ("VGG16BN", "WideResNet28x10", "PreResNet20") else "PreResNet164"
        pair = ("mnist", "PreResNet8") if grey else ("cifar10", nearest)
        say(f"The paper has no {model} on {dataset}; its recipe of {pair[1]} on {pair[0]} is used.")
    try:
        return Recipe.paper(*pair, **changes)
    except TypeError as error:
        raise ValueError(f"--set: {error}") from None


def _changes(texts: list[str]) -> dict[str, Any]:
    """Return FIELD=VALUE as a dictionary, or refuse it; values are Python literals, and plain words are strings."""
    from greedy_ensembles.training import Recipe

    fields = [field.name for field in dataclasses.fields(Recipe)]
    changes = {}
    for text in texts:
        name, equals, value = map(str.strip, text.partition("="))
        if not equals:
            raise ValueError(f"--set takes FIELD=VALUE, as in --set epochs=20; got {text!r}")
        if name not in fields:
            nearest = difflib.get_close_matches(name, fields, n=1, cutoff=0.5)
            hint = f"; did you mean --set {nearest[0]}={value}?" if nearest else ""
            raise ValueError(f"--set {name}: a recipe has no such field{hint} (--set help lists them)")
        try:
            changes[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            changes[name] = value
    try:
        Recipe(**changes)
    except TypeError as error:
        raise ValueError(str(error)) from None
    return changes

"""``greedy-ensembles train``: data of one's own, or any network on any published set by the paper's recipe."""

import ast
import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from greedy_ensembles.cli.app import DataFolder, Device, Quiet, check_folder, command, goes_on, imported, leads, say

if TYPE_CHECKING:
    from greedy_ensembles.cli.own_data import OwnData
    from greedy_ensembles.data import ImageSet, LabelledSet
    from greedy_ensembles.training import Recipe


def _list_fields(asked: list[str] | None) -> list[str] | None:
    """Print every field of a recipe, with its default and what it is, where that is asked for."""
    if "help" not in (asked or []):
        return asked
    from greedy_ensembles.training import Recipe

    text = inspect.getdoc(Recipe) or ""
    told = dict(re.findall(r"^    (\w+): (.*(?:\n        .*)*)", text.partition("Attributes:\n")[2], flags=re.M))
    console = Console()
    for field in dataclasses.fields(Recipe):
        console.print(f"{field.name}={field.default}", style="bold", markup=False, highlight=False)
        console.print(Padding(Text(" ".join(told[field.name].split())), (0, 0, 0, 4)))
    console.print(
        "These are the defaults of ge.Recipe. Each kind of data has a recipe of its own, which --set changes."
    )
    raise typer.Exit


@command("train")
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
        str | None,
        typer.Option(help="The name of a method, such as deep (Deep Ensembles); default: greedy, the paper's."),
    ] = None,
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
    from greedy_ensembles.data import SETS
    from greedy_ensembles.training import fit

    check_folder(out)
    check_count("--size", size, least=1)
    chosen, coupled = _method(method, strength)
    if weighting is not None and not coupled:
        raise ValueError(f"--weighting is where members meet, and those of {method} do not; leave it out")
    changes = _changes(change or [])
    check_fields(changes)  # before pictures are read, which may take a while
    if data in SETS:
        given = {"--target": target, "--leave-out": leave_out, "--shape": shape, "--test": test}
        _refuse(given, f"is for data of your own, and {data} is a published set")
        task = _published(data, model, changes, paper, three_channels, images, validation, root)
    else:
        given = {"--paper": paper, "--three-channels": three_channels, "--images": images}
        _refuse(given, "is for published sets")
        task = _own(data, model, changes, shape, target, leave_out or [], validation, test)
    p_star = weighting or ("wrap" if paper else None)
    try:
        ensemble = fit(
            task.make_model,
            task.data,
            size=size,
            **chosen,
            weighting=_weighting(p_star, task.data, root) if coupled and p_star else None,
            recipe=task.recipe,
            seed=seed,
            validation=task.validation,
            run_dir=out,
            schedule=schedule,
            device=device,
            progress=not quiet,
        )
    except KeyboardInterrupt as interruption:
        goes_on(interruption)
        raise
    except TypeError as error:  # of the model, as a rule, which may be the user's own
        raise ValueError(str(error)) from error
    if task.own is not None and leads():
        task.own.keep(out.expanduser(), seed)
    print(f"{len(ensemble)} member{'s' if len(ensemble) > 1 else ''} in {out}")


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """What `fit` is asked to train, and on what."""

    data: "LabelledSet"
    make_model: Callable[[], Any]
    recipe: "Recipe"
    validation: "LabelledSet | float"
    own: "OwnData | None" = None  #: where it is data of one's own, whose held-out parts are kept with the run


def _refuse(given: dict[str, Any], why: str) -> None:
    for option, value in given.items():
        if value not in (None, False, []):
            raise ValueError(f"{option} {why}; leave it out")


def _own(
    text: str,
    model: str | None,
    changes: dict[str, Any],
    shape: str | None,
    target: str | None,
    leave_out: list[str],
    validation: float | None,
    test: float | None,
) -> Task:
    """Return the task on data of one's own."""
    from greedy_ensembles.cli.given import parse_shape
    from greedy_ensembles.cli.own_data import read_own, say_parts
    from greedy_ensembles.data import SETS

    if not Path(text).expanduser().exists():
        nearest = difflib.get_close_matches(text.lower(), SETS, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else " (`greedy-ensembles data list` has their names)"
        raise ValueError(f"there is no file or folder {text}, and no published set of that name{hint}")
    size = None if shape is None else parse_shape(shape)
    own = read_own(text, shape=size, target=target, leave_out=leave_out, validation=validation, test=test)
    say_parts(own)
    make_model = imported(model) if model is not None and ":" in model else _tried(partial(own.model, model))
    return Task(own.train, make_model, own.recipe(changes), own.validation, own)


def _published(
    dataset: str,
    model: str | None,
    changes: dict[str, Any],
    paper: bool,
    three_channels: bool,
    images: int | None,
    validation: float | None,
    root: Path | None,
) -> Task:
    """Return the task on a published set, by the paper's recipe."""
    from greedy_ensembles.data import load
    from greedy_ensembles.paper.published import PUBLISHED
    from greedy_ensembles.training import Recipe

    if model is None:
        raise ValueError(
            f"--model must name a network for {dataset}, such as PreResNet8 (the paper's for MNIST), PreResNet20 or "
            "VGG16BN"
        )
    data = load(dataset, "train", root)
    if images is not None:
        data = _first(data, images)
    channels = data.images.shape[1]
    data = data.with_channels(3) if three_channels else data
    make_model = _model(model, data)
    own = {} if paper else {"weighting_statistics": Recipe.weighting_statistics}
    recipe = _recipe(dataset, model, channels, own | changes)
    if data.note:
        say(f"{dataset}: {data.note}")
    if model in PUBLISHED and paper:
        make_model = partial(make_model, **PUBLISHED[model])
    elif model in PUBLISHED:
        other = ", ".join(f"{name}={value}" for name, value in PUBLISHED[model].items())
        say(f"{model} is that of its name; that of the paper's figures (--paper) has {other}.")
    return Task(data, make_model, recipe, 0.1 if validation is None else validation)


def _weighting(name: str, data: "LabelledSet", root: Path | None) -> Any:
    from greedy_ensembles.data import ImageSet
    from greedy_ensembles.paper.images import named_weighting

    if not isinstance(data, ImageSet):
        raise ValueError(f"--weighting {name} is for images; leave it out for a table")
    return named_weighting(name, data, root)


def _method(method: str | None, strength: float | None) -> tuple[dict[str, Any], bool]:
    """Return what `fit` is told of the method, and whether its members meet; what is left out is as `fit` has it."""
    from greedy_ensembles.checks import check_choice
    from greedy_ensembles.method import METHODS

    if method is not None:
        check_choice("--method", method, METHODS)
    coupled = method is None or METHODS[method].sees != "none"
    if strength is not None and not coupled:
        raise ValueError(f"--method {method} has no strength: its members do not meet; leave --strength out")
    given = {"method": method, "strength": strength}
    return {name: value for name, value in given.items() if value is not None}, coupled


def _changes(texts: list[str]) -> dict[str, Any]:
    """Return FIELD=VALUE as a dictionary; values are Python literals, and plain words are strings."""
    changes = {}
    for text in texts:
        field, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set takes FIELD=VALUE, as in --set epochs=20; got {text!r}")
        try:
            changes[field.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            changes[field.strip()] = value.strip()
    return changes


def _first(data: "ImageSet", count: int) -> "ImageSet":
    if not 1 <= count <= len(data):
        raise ValueError(f"--images must be between 1 and the {len(data):,} of {data.name}, got {count}")
    part = data.replace(images=data.images[:count], labels=None if data.labels is None else data.labels[:count])
    return part.with_note(f"the first {count:,} images of {len(data):,}")


def check_fields(changes: dict[str, Any]) -> None:
    """Refuse what is no field of a recipe, with the nearest that is."""
    from greedy_ensembles.training import Recipe

    fields = [field.name for field in dataclasses.fields(Recipe)]
    for name in changes:
        nearest = difflib.get_close_matches(name, fields, n=1, cutoff=0.5)
        if name not in fields:
            hint = f"; did you mean --set {nearest[0]}={changes[name]}?" if nearest else ""
            raise ValueError(f"--set {name}: a recipe has no such field{hint} (--set help lists them)")
    try:
        Recipe(**changes)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _recipe(dataset: str, model: str, channels: int, changes: dict[str, Any]) -> "Recipe":
    """Return the paper's recipe for the pair, or that of the nearest pair the paper has, and say so."""
    from greedy_ensembles.training import Recipe

    pair = dataset, model
    try:
        Recipe.paper(*pair)
    except ValueError:
        pair = ("mnist", "PreResNet8") if channels == 1 else ("cifar10", _nearest(model))
        say(f"The paper has no {model} on {dataset}; its recipe of {pair[1]} on {pair[0]} is used.")
    try:
        return Recipe.paper(*pair, **changes)
    except TypeError as error:
        raise ValueError(f"--set: {error}") from None


def _nearest(model: str) -> str:
    return model if model in ("VGG16BN", "WideResNet28x10", "PreResNet20") else "PreResNet164"


def _model(name: str, data: "ImageSet") -> Callable[[], Any]:
    from greedy_ensembles.models import named

    if ":" in name:
        return imported(name)
    if data.classes is None:
        raise ValueError(
            f"{data.name} does not say how many classes it has; give a model with --model package:function"
        )
    return _tried(partial(named, name, classes=len(data.classes), channels=data.images.shape[1]))


def _tried(choose: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
    """Return the network that was chosen by its name, after building it without its numbers."""
    import torch

    try:
        make_model = choose()
        with torch.device("meta"):
            make_model()
    except ValueError as error:
        raise ValueError(f"{error} (a network of your own: --model package:function)") from None
    return make_model

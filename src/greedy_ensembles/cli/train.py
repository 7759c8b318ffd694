"""``greedy-ensembles train``: any network on any data set, with the paper's recipe or changes to it."""

import ast
import dataclasses
import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from greedy_ensembles.cli.app import DataFolder, Device, Quiet, app, check_folder, goes_on, in_one_line

if TYPE_CHECKING:
    from greedy_ensembles.data import ImageSet
    from greedy_ensembles.training import Recipe


@app.command("train")
@in_one_line
def train(
    dataset: Annotated[str, typer.Argument(help="A data set, as `data list` shows them; its train split is used.")],
    model: Annotated[
        str, typer.Option(help="PreResNet8, PreResNet20, ..., VGG16BN, WideResNet28x10, or package:function.")
    ],
    size: Annotated[int, typer.Option(help="M, the number of members.")],
    out: Annotated[Path, typer.Option(help="The run folder; a run there is resumed, or extended to a larger size.")],
    method: Annotated[
        str | None,
        typer.Option(help="The name of a method; default: the paper's with --strength, Deep Ensembles without."),
    ] = None,
    strength: Annotated[float | None, typer.Option(help="lambda_M, how strongly members repel each other.")] = None,
    weighting: Annotated[
        str | None,
        typer.Option(
            help="p*: wrap (the paper's), clip, none, uniform, scramble, half, or a data set; default: that of ge.fit."
        ),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's p*, its statistics for p*, and its network of that name.")
    ] = False,
    three_channels: Annotated[
        bool, typer.Option("--three-channels", help="Grey images as three equal channels, as the paper has MNIST.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Where all random numbers come from; repetitions: at least M apart.")] = 0,
    schedule: Annotated[str, typer.Option(help="sequential (the paper's) or concurrent.")] = "sequential",
    validation: Annotated[float, typer.Option(help="Share held out to select each member's best epoch.")] = 0.1,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the recipe to change, as in --set epochs=20."),
    ] = None,
    images: Annotated[int | None, typer.Option(help="Train on the first so many images alone.")] = None,
    device: Device = None,
    root: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Train an ensemble on a data set."""
    from greedy_ensembles.data import load
    from greedy_ensembles.paper.images import named_weighting
    from greedy_ensembles.paper.published import PUBLISHED
    from greedy_ensembles.training import Recipe, fit

    check_folder(out)
    chosen, coupled = _method(method, strength)
    if weighting is not None and not coupled:
        raise ValueError("--weighting is for methods whose members meet on p*; name a --strength, or leave it out")
    changes = _changes(change or [])
    data = load(dataset, "train", root)
    if images is not None:
        data = _first(data, images)
    channels = data.images.shape[1]
    data = data.with_channels(3) if three_channels else data
    make_model = _model(model, data)
    own = {} if paper else {"weighting_statistics": Recipe.weighting_statistics}
    recipe = _recipe(dataset, model, channels, own | changes)
    if data.note:
        print(f"{dataset}: {data.note}", file=sys.stderr)
    if model in PUBLISHED and paper:
        make_model = partial(make_model, **PUBLISHED[model])
    elif model in PUBLISHED:
        other = ", ".join(f"{name}={value}" for name, value in PUBLISHED[model].items())
        print(f"{model} is that of its name; that of the paper's figures (--paper) has {other}.", file=sys.stderr)
    p_star = weighting or ("wrap" if paper else None)
    try:
        ensemble = fit(
            make_model,
            data,
            size=size,
            **chosen,
            weighting=named_weighting(p_star, data, root) if coupled and p_star else None,
            recipe=recipe,
            seed=seed,
            validation=validation,
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
    count = f"{len(ensemble)} member{'s' if len(ensemble) > 1 else ''}"
    Console().print(f"{count} in {out}", soft_wrap=True, highlight=False)


def _method(method: str | None, strength: float | None) -> tuple[dict[str, Any], bool]:
    """Return what `fit` is told of the method, and whether its members meet; what is left out is as `fit` has it."""
    from greedy_ensembles.benchmark.runs import couples
    from greedy_ensembles.checks import check_choice
    from greedy_ensembles.method import METHODS

    if method is not None:
        check_choice("--method", method, METHODS)
    elif strength is None:
        method = next(name for name in METHODS if not couples(name))
    coupled = method is None or couples(method)
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


def _recipe(dataset: str, model: str, channels: int, changes: dict[str, Any]) -> "Recipe":
    """Return the paper's recipe for the pair, or that of the nearest pair the paper has, and say so."""
    from greedy_ensembles.training import Recipe

    fields = {field.name for field in dataclasses.fields(Recipe)}
    for name in changes:
        if name not in fields:
            raise ValueError(f"--set {name}: a recipe has no such field, but {', '.join(sorted(fields))}")
    pair = dataset, model
    try:
        Recipe.paper(*pair)
    except ValueError:
        pair = ("mnist", "PreResNet8") if channels == 1 else ("cifar10", _nearest(model))
        print(f"The paper has no {model} on {dataset}; its recipe of {pair[1]} on {pair[0]} is used.", file=sys.stderr)
    try:
        return Recipe.paper(*pair, **changes)
    except TypeError as error:
        raise ValueError(f"--set: {error}") from None


def _nearest(model: str) -> str:
    return model if model in ("VGG16BN", "WideResNet28x10", "PreResNet20") else "PreResNet164"


def _model(name: str, data: "ImageSet") -> Callable[[], Any]:
    import torch

    from greedy_ensembles.models import named

    if ":" in name:
        return imported(name)
    if data.classes is None:
        raise ValueError(
            f"{data.name} does not say how many classes it has; give a model with --model package:function"
        )
    try:
        make_model = named(name, classes=len(data.classes), channels=data.images.shape[1])
        with torch.device("meta"):
            make_model()
    except ValueError as error:
        raise ValueError(f"{error} (a network of your own: --model package:function)") from None
    return make_model


def imported(name: str) -> Callable[[], Any]:
    """Return a callable named package:function, found as Python finds modules, the current folder included."""
    from torch import nn

    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ValueError(f"--model must be package:function for a model of your own, got {name!r}")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # of any kind: it is someone's own code
        raise ValueError(f"--model {name} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove("")
    if isinstance(found, nn.Module):
        raise ValueError(f"--model {name} must be a function that makes a new model for each member; it is one model")
    try:
        made = found() if callable(found) else found
    except Exception as error:
        raise ValueError(f"--model {name} cannot be called: {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise ValueError(f"--model {name} must be a function that returns a torch.nn.Module, got {made!r}")
    return found  # type: ignore[no-any-return]

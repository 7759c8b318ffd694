"""The command line: ``greedy-ensembles``, or ``python -m greedy_ensembles``."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec

import typer
from rich.console import Console
from rich.table import Table

from greedy_ensembles.version import __version__

Parameters = ParamSpec("Parameters")
DataFolder = Annotated[
    Path | None, typer.Option("--root", help="The data folder; default: GREEDY_ENSEMBLES_DATA, else a cache folder.")
]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Deep ensembles trained greedily to cover the posterior.",
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"greedy-ensembles {__version__}")
        raise typer.Exit


data_app = typer.Typer(no_args_is_help=True, help="List, find, download and check the data sets.")
app.add_typer(data_app, name="data")


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _in_one_line(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Let a command end in one line, instead of a traceback, where the user can mend what went wrong."""

    @functools.wraps(command)
    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt as interruption:
            print(*getattr(interruption, "__notes__", ["Interrupted."]), file=sys.stderr)
            raise typer.Exit(130) from None
        except (ValueError, OSError, ArithmeticError, ChildProcessError) as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(1) from None

    return run


@app.command("two-moons")
@_in_one_line
def two_moons(
    out: Annotated[Path, typer.Option(help="Folder for the picture, the figures and the runs.")],
    seed: Annotated[int, typer.Option(help="Where all random numbers come from.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Train Deep Ensembles and the method on two moons, and draw the paper's Figure 2."""
    from greedy_ensembles.experiments import two_moons as study  # brings matplotlib, which --help can do without

    results = study.run(out, seed, progress=not quiet)
    table = Table("method", "lambda_M", "accuracy", "MI at the data", "MI far away")
    for result in results:
        strength = "" if result.strength is None else f"{result.strength:g}"
        values = (f"{result.accuracy:.1%}", f"{result.mi_data:.3f}", f"{result.mi_far:.3f}")
        table.add_row(result.method, strength, *values)
    console = Console()
    console.print(table)
    console.print(f"Wrote {out / 'two-moons.png'} and {out / 'two-moons.json'}", soft_wrap=True, highlight=False)


@app.command("illustrate")
@_in_one_line
def illustrate(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the figures.")],
    seed: Annotated[int, typer.Option(help="The first of the 20 seeds.")] = 0,
) -> None:
    """Approximate a density on the line in three ways, and draw the paper's Figure 1."""
    from greedy_ensembles.experiments import illustrate as study

    results = study.run(out, seed)
    table = Table("divergence", *(result.approach for result in results))
    for name in study.GENERATORS:
        spreads = [result.divergence[name] for result in results]
        table.add_row(name, *(f"{spread.mean:.3f} ± {spread.standard_deviation:.3f}" for spread in spreads))
    console = Console()
    console.print(table)
    console.print(f"Wrote {out / 'illustrate.png'} and {out / 'illustrate.json'}", soft_wrap=True, highlight=False)


@app.command("guarantee-study")
@_in_one_line
def guarantee_study(
    out: Annotated[
        Path, typer.Option(help="Folder for the figure, the tables and the page; a study there is resumed.")
    ],
    instances: Annotated[int, typer.Option(help="Random instances in each cell.")] = 200,
    seed: Annotated[int, typer.Option(help="Where all random numbers come from.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Measure how close greedy comes to the optimum on problems small enough to solve, for every f-divergence."""
    from greedy_ensembles.experiments import guarantee as study

    results = study.run(out, instances, seed, progress=not quiet)
    count = sum(len(result.measurements["best"]) for result in results)
    console = Console()
    console.print(f"{count:,} instances in {len(results)} cells", highlight=False)
    console.print(f"Wrote {out / 'guarantee.md'}, guarantee.png and guarantee.csv", soft_wrap=True)


@data_app.command("list")
@_in_one_line
def data_list() -> None:
    """List every data set that has a name here."""
    from greedy_ensembles.data.sets import SETS
    from greedy_ensembles.data.sources import SOURCES

    table = Table("name", "what it is", "images", "download")
    for entry in SETS.values():
        splits = entry.counts.items() if len(entry.counts) < 3 else [(f"{len(entry.counts)} splits of", 50_000)]
        size = sum(source.size for source in SOURCES.get(entry.name, ()))
        counts = ", ".join(f"{split} {count:,}" for split, count in splits)
        table.add_row(entry.name, entry.title, counts, f"{size:,.0f} MB" if size else "")
    Console().print(table)


@data_app.command("status")
@_in_one_line
def data_status(root: DataFolder = None) -> None:
    """Say which data sets are in the data folder, and where; `check` reads them, and finds what is partial."""
    from greedy_ensembles.data import SETS, registry

    folder = registry.data_root(root)
    found = registry.available(folder)
    table = Table("name", "split", "found in", "note", title=f"Data folder: {folder}")
    for entry, split, form in found:
        table.add_row(entry.name, split, form.needs(split)[0], registry.quick_note(form, split, folder))
    there = {entry.name for entry, _, _ in found}
    missing = [entry.name for entry in SETS.values() if entry.forms and entry.name not in there]
    console = Console()
    console.print(table)
    if missing:
        console.print(f"Not there: {', '.join(missing)}", highlight=False)


@data_app.command("download")
@_in_one_line
def data_download(
    names: Annotated[list[str], typer.Argument(help="Names of data sets, as `data list` shows them.")],
    root: DataFolder = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Download data sets from their publishers, check their hashes and unpack them."""
    from greedy_ensembles.data import download

    for name in names:
        download.check_name(name)  # all of them before the first gigabyte
    for name in names:
        download.download(name, root, progress=None if quiet else download.Bar())


@data_app.command("check")
@_in_one_line
def data_check(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; default: all that are there.")] = None,
    root: DataFolder = None,
) -> None:
    """Read data sets, and report how many images they have, their shape and the mean of each channel."""
    from greedy_ensembles.data import registry

    folder = registry.data_root(root)
    found = [(entry.name, split) for entry, split, _ in registry.available(folder)]
    if names:
        wanted = [registry.get(name) for name in names]
        found = [(e.name, split) for e in wanted for split in e.counts if not e.forms or (e.name, split) in found]
    if not found:
        raise ValueError(f"none of the data sets asked for is in {folder}")
    table = Table("name", "split", "images", "shape", "means", "note", title=f"Data folder: {folder}")
    broken = 0
    for name, split in found:
        try:
            images = registry.load(name, split, folder)
        except (ValueError, TypeError, OSError) as error:  # the others are worth a look all the same
            table.add_row(name, split, "", "", "", f"cannot be read: {error}")
            broken += 1
            continue
        means = " ".join(f"{mean:.4f}" for mean in images.channel_means)
        shape = "x".join(map(str, images.images.shape[1:]))
        table.add_row(name, split, f"{len(images):,}", shape, means, images.note)
    Console().print(table)
    if broken:
        raise ValueError(f"{broken} of {len(found)} could not be read")


def main() -> None:
    """Run the command line."""
    app(prog_name="greedy-ensembles")

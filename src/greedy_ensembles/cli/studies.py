"""Commands of the paper's studies that need no images."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from greedy_ensembles.cli.app import Quiet, check_folder, command


@command("two-moons")
def two_moons(
    out: Annotated[Path, typer.Option(help="Folder for the picture, the figures and the runs.")],
    seed: Annotated[int, typer.Option(help="Where all random numbers come from.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Train Deep Ensembles and the method on two moons, and draw the paper's Figure 2."""
    from greedy_ensembles.paper import two_moons as study  # brings matplotlib, which --help can do without

    check_folder(out)
    results = study.run(out, seed, progress=not quiet)
    table = Table("method", "lambda_M", "accuracy", "MI at the data", "MI far away")
    for result in results:
        strength = "" if result.strength is None else f"{result.strength:g}"
        values = (f"{result.accuracy:.1%}", f"{result.mi_data:.3f}", f"{result.mi_far:.3f}")
        table.add_row(result.method, strength, *values)
    Console(markup=False).print(table)
    print(f"Wrote {out / 'two-moons.md'}, two-moons.png and records/two-moons.json")


@command("illustrate")
def illustrate(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the figures.")],
    seed: Annotated[int, typer.Option(help="The first of the 20 seeds.")] = 0,
) -> None:
    """Approximate a density on the line in three ways, and draw the paper's Figure 1."""
    from greedy_ensembles.paper import illustrate as study

    check_folder(out)
    results = study.run(out, seed)
    table = Table("divergence", *results)
    for name in study.GENERATORS:
        spreads = [spreads[name] for spreads in results.values()]
        table.add_row(name, *(f"{spread.mean:.3f} ± {spread.standard_deviation:.3f}" for spread in spreads))
    Console(markup=False).print(table)
    print(f"Wrote {out / 'illustrate.md'}, illustrate.png and records/illustrate.json")


@command("guarantee-study")
def guarantee_study(
    out: Annotated[
        Path, typer.Option(help="Folder for the figure, the tables and the page; a study there is resumed.")
    ],
    instances: Annotated[int, typer.Option(help="Random instances in each cell.")] = 200,
    seed: Annotated[int, typer.Option(help="Where all random numbers come from.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Measure how close greedy comes to the optimum on problems small enough to solve, for every f-divergence."""
    from greedy_ensembles.paper import guarantee as study

    check_folder(out)
    results = study.run(out, instances, seed, progress=not quiet)
    count = sum(len(measured["best"]) for measured in results.values())
    print(f"{count:,} instances in {len(results)} cells")
    print(f"Wrote {out / 'guarantee.md'}, guarantee.png and records/guarantee.csv")

"""Commands about data sets: ``greedy-ensembles data list | status | download | check``."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from greedy_ensembles.checks import check_choice
from greedy_ensembles.cli.app import DataFolder, Quiet, app, command

data_app = typer.Typer(no_args_is_help=True, help="List, find, download and check the data sets.")
app.add_typer(data_app, name="data")


def _show(table: Table) -> None:
    for column in table.columns:
        column.overflow = "fold"  # no end is missing on a narrow screen
    Console(markup=False).print(table)  # square brackets in paths are no markup


@command("list", data_app)
def data_list() -> None:
    """List every data set that has a name here."""
    from greedy_ensembles.data import SETS
    from greedy_ensembles.data.download import SOURCES

    table = Table("name", "what it is", "images", "download")
    for entry in SETS.values():
        splits = entry.counts.items() if len(entry.counts) < 3 else [(f"{len(entry.counts)} splits of", 50_000)]
        size = sum(source.size for source in SOURCES.get(entry.name, ()))
        counts = ", ".join(f"{split} {count:,}" for split, count in splits)
        table.add_row(entry.name, entry.title, counts, f"{size:,.0f} MB" if size else "")
    _show(table)


@command("status", data_app)
def data_status(root: DataFolder = None) -> None:
    """Say which data sets are in the data folder, and where; `check` reads them, and finds what is partial."""
    from greedy_ensembles.data import SETS, data_root, registry

    folder = data_root(root)
    found = registry.available(folder)
    table = Table("name", "split", "found in", "note", title=f"Data folder: {folder}")
    for entry, split, form in found:
        table.add_row(entry.name, split, form.needs(split)[0], registry.quick_note(form, split, folder))
    there = {entry.name for entry, _, _ in found}
    missing = [entry.name for entry in SETS.values() if entry.forms and entry.name not in there]
    _show(table)
    if not folder.is_dir():
        print(f"{folder} is a file, and no folder" if folder.exists() else f"There is no folder {folder}")
    if missing:
        print(f"Not there: {', '.join(missing)}")


@command("download", data_app)
def data_download(
    names: Annotated[list[str], typer.Argument(help="Names of data sets, as `data list` shows them.")],
    trust: Annotated[bool, typer.Option("--trust", help="Take files of which no public hash is known.")] = False,
    root: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Download data sets from their publishers, check their hashes and unpack them."""
    from greedy_ensembles.data import download

    for name in names:
        check_choice("name", name, download.SOURCES)  # all of them before the first gigabyte
    for name in names:
        download.download(name, root, trust=trust, progress=not quiet)


@command("check", data_app)
def data_check(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; default: all that are there.")] = None,
    root: DataFolder = None,
) -> None:
    """Read data sets, and report how many images they have, their shape and the mean of each channel."""
    from greedy_ensembles.data import data_root, registry

    folder = data_root(root)
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
    _show(table)
    if broken:
        raise ValueError(f"{broken} of {len(found)} could not be read")

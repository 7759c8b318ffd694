"""The command line: ``greedy-ensembles``, or ``python -m greedy_ensembles``; one file for each kind of command."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def application() -> "typer.Typer":
    """Return the application with all its commands."""
    from greedy_ensembles.cli import data, evaluate, predict, reproduce, train  # noqa: F401 (they register)
    from greedy_ensembles.cli.app import app

    return app


def main() -> None:
    """Run the command line; Ctrl-C ends it in one line also while libraries are being imported, which takes a while."""
    try:
        application()(prog_name="greedy-ensembles")
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)

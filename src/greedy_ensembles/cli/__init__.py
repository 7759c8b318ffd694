"""The command line: ``greedy-ensembles``, or ``python -m greedy_ensembles``; one file for each kind of command."""

from greedy_ensembles.cli import (  # noqa: F401 (they register their commands)
    data,
    evaluate,
    predict,
    report,
    reproduce,
    select,
    studies,
    train,
)
from greedy_ensembles.cli.app import app


def main() -> None:
    """Run the command line."""
    app(prog_name="greedy-ensembles")

"""The command line: ``greedy-ensembles``, or ``python -m greedy_ensembles``; one file for each kind of command."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it in one line also while libraries are being imported, which takes a while."""
    try:
        from greedy_ensembles.cli.commands import app

        app(prog_name="greedy-ensembles")
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)

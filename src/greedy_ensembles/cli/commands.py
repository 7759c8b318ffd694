"""All commands, registered with the application."""

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

__all__ = ["app"]

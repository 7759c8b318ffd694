"""What all commands share: the application, options, checks of paths, and how a command ends that went wrong."""

import functools
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from greedy_ensembles.version import __version__

Parameters = ParamSpec("Parameters")

DataFolder = Annotated[
    Path | None, typer.Option("--root", help="The data folder; default: GREEDY_ENSEMBLES_DATA, else a cache folder.")
]
OwnModel = Annotated[
    str | None,
    typer.Option("--model", help="package:function, for runs of a model of your own."),
]
Device = Annotated[str | None, typer.Option(help="cuda or cpu; default: cuda where there is one.")]
BatchSize = Annotated[
    int | None, typer.Option(help="How many images a member sees at once; default: 64 on the CPU, 1024 on CUDA.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]

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


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _show_warning(message: Warning | str, *where: object, **options: object) -> None:
    print(f"warning: {message}", file=sys.stderr)  # where in our code it came from is no help to a user


def goes_on(interruption: KeyboardInterrupt) -> None:
    """Say that an interrupted command can be continued, where what was under way has not said so already."""
    if not getattr(interruption, "__notes__", None):
        interruption.add_note("Interrupted. The same command goes on from the last saved epoch.")


def in_one_line(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Make a command end in one line, not in a traceback, where its user can mend what went wrong.

    Warnings are one line as well.
    """

    @functools.wraps(command)
    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                command(*arguments, **options)
        except KeyboardInterrupt as interruption:
            print(*getattr(interruption, "__notes__", ["Interrupted."]), file=sys.stderr)
            raise typer.Exit(130) from None
        except (ValueError, OSError, ArithmeticError, ChildProcessError) as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(1) from None

    return run


def check_there(paths: Iterable[Path]) -> None:
    """Refuse paths that do not exist."""
    for path in paths:
        if not path.expanduser().exists():
            raise FileNotFoundError(f"{path} does not exist")


def check_folder(out: Path | None, option: str = "--out") -> None:
    """Refuse a file where a folder is to be made."""
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"{option} must be a folder, but {out} is a file")


def check_file(out: Path | None) -> None:
    """Refuse a folder where a file is to be written."""
    if out is not None and out.is_dir():
        raise ValueError(f"--out must be a file, but {out} is a folder")

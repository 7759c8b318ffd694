"""What all commands share: the application, options, checks of paths, and how a command ends that went wrong."""

import functools
import importlib
import inspect
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, ParamSpec, get_args

import typer
from typer.models import OptionInfo

from greedy_ensembles.machine import __version__

Parameters = ParamSpec("Parameters")

DataFolder = Annotated[
    Path | None, typer.Option("--root", help="The data folder; default: GREEDY_ENSEMBLES_DATA, else a cache folder.")
]
OwnModel = Annotated[
    str | None, typer.Option("--model", help="package:function, where a folder does not name one of our models.")
]
Device = Annotated[str | None, typer.Option(help="cuda or cpu; default: cuda where there is one.")]
BatchSize = Annotated[
    int | None, typer.Option(help="How many images a member sees at once; default: 64 on the CPU, 1024 on CUDA.")
]
On = Annotated[
    str | None,
    typer.Option(help="Where runs go: processes, ray, or ray://HOST:PORT; default: here, one after another."),
]
Cpus = Annotated[int, typer.Option("--cpus-per-run", help="With --on: cores that a run needs.")]
Gpus = Annotated[
    float | None,
    typer.Option("--gpus-per-run", help="With --on: GPUs, or the share of one; default: 1 where there are any."),
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


#: What is said after Ctrl-C of commands that train.
GOES_ON = "Interrupted. The same command goes on from the last saved epoch."
#: What commands call arguments of Python that have another name there.
_ELSEWHERE = {"run_dir": "--out", "make_model": "--model", "root": "--root"}
#: What stands before or after a word that names an argument, rather than a thing.
_BEFORE, _AFTER = r"^|(?<=change )|(?<=smaller )|(?<=larger )", r"(?= must| is | has | needs| holds| =| \(lambda|,|$)"


def in_options(message: str, options: Mapping[str, str]) -> str:
    """Return a message in which arguments of Python are called what the command calls them.

    >>> in_options("size must be at least 1; name another run_dir", {"size": "--size", "run_dir": "--out"})
    '--size must be at least 1; name another --out'
    >>> in_options("use validation=0, or epochs=3", {"validation": "--validation", "epochs": "--set epochs"})
    'use --validation 0, or --set epochs=3'
    """
    for name, option in options.items():
        joint = "=" if option.startswith("--set ") else " "
        message = re.sub(rf"(?<![\w.(-])(?<!--set ){name}=(['\"]?)([^\s;,)'\"]+)\1", rf"{option}{joint}\2", message)
        message = re.sub(rf"({_BEFORE}){name}{_AFTER}", option, message)
        if "_" in name:  # which is no word that means anything else
            message = re.sub(rf"(?<![\w.(-])(?<!--set ){name}(?![\w=(])", option, message)
    return message


def _options_of(command: Callable[..., None]) -> dict[str, str]:
    """Return, by argument of Python, the option of a command that sets it."""
    from greedy_ensembles.training import Recipe

    parameters = inspect.signature(command).parameters.values()
    known = {}
    for each in parameters:
        for option in (one for one in get_args(each.annotation) if isinstance(one, OptionInfo)):
            own = option.default  # inside Annotated, that is its name, where it is given one
            known[each.name] = own if isinstance(own, str) else f"--{each.name.replace('_', '-')}"
    fields = inspect.signature(Recipe).parameters if "change" in known else ()
    return {**{name: f"--set {name}" for name in fields}, **_ELSEWHERE, **known}


def command(
    name: str, of: typer.Typer = app, interrupted: str = "Interrupted."
) -> Callable[[Callable[Parameters, None]], Callable[Parameters, None]]:
    """Register a function as a command that ends in one line, not in a traceback, where its user can mend it.

    Warnings are one line as well. Of the processes that `torchrun` starts, the others speak of errors alone.
    `interrupted` is said after Ctrl-C where what was under way has not said it already.
    """
    return lambda function: of.command(name)(_in_one_line(function, interrupted))


def _in_one_line(command: Callable[Parameters, None], interrupted: str) -> Callable[Parameters, None]:
    @functools.wraps(command)
    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
        def show(message: Warning | str, *where: object, **others: object) -> None:  # where is no help to a user
            say(f"warning: {in_options(str(message), _options_of(command))}")

        try:
            with warnings.catch_warnings(), ExitStack() as quiet:
                warnings.showwarning = show
                if not leads():
                    quiet.enter_context(redirect_stdout(io.StringIO()))
                    quiet.enter_context(redirect_stderr(io.StringIO()))
                command(*arguments, **{name: _spelled_out(value) for name, value in options.items()})
        except KeyboardInterrupt as interruption:
            print(*getattr(interruption, "__notes__", [interrupted]), file=sys.stderr)
            raise typer.Exit(130) from None
        except (ValueError, OSError, ArithmeticError, ChildProcessError) as error:
            say(f"error: {in_options(str(error), _options_of(command))}")
            raise typer.Exit(1) from None

    return run


def _spelled_out(value: Any) -> Any:
    """Return an option whose paths have the home folder in the place of ~, which shells leave in --out=~/folder."""
    if isinstance(value, list):
        return [_spelled_out(item) for item in value]
    return value.expanduser() if isinstance(value, Path) else value


def say(line: str) -> None:
    """Tell something on standard error, since standard output may be read by a program."""
    print(line, file=sys.stderr, flush=True)


def leads() -> bool:
    """Say whether this is the only process of a command, or the first of those that `torchrun` started."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK") == "0"


def check_folder(out: Path | None, option: str = "--out") -> None:
    """Refuse a file where a folder is to be made, or where one above it is."""
    for path in () if out is None else (out, *out.parents):
        if path.exists() and not path.is_dir():
            raise ValueError(f"{option} must be a folder, but {path} is a file")


def check_file(out: Path | None, option: str = "--out") -> None:
    """Refuse a folder where a file is to be written, and a file in a folder that is not there."""
    if out is not None and out.is_dir():
        raise ValueError(f"{option} must be a file, but {out} is a folder")
    if out is not None and not out.absolute().parent.is_dir():
        raise ValueError(f"{option} {out} cannot be written: there is no folder {out.absolute().parent}")


def imported(name: str | None) -> Any:
    """Return a callable named package:function, found as Python finds modules, the current folder included."""
    if name is None:
        return None
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
    return found

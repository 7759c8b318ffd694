"""Options that several commands have, in one wording."""

from pathlib import Path
from typing import Annotated

import typer

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

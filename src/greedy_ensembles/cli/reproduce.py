"""``greedy-ensembles reproduce``: the paper's studies, from training to a page beside its figures."""

import inspect
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from greedy_ensembles.cli.app import (
    CpusPerRun,
    DataFolder,
    Device,
    GpusPerRun,
    On,
    Quiet,
    check_folder,
    command,
    goes_on,
    say,
)

if TYPE_CHECKING:
    import torch

    from greedy_ensembles.data.image_set import Bytes
    from greedy_ensembles.paper.runner import Runner
    from greedy_ensembles.paper.study import Job, Protocol, Study

BUDGETS = ("paper", "quick")
_OF_ALL = ("study", "out", "page", "quiet")  #: what each study has, also one with settings of its own
_CORRUPTIONS = "; `pip install 'greedy-ensembles[corruptions]'` lets it make corruptions like those of CIFAR-10-C"


@command("reproduce")
def reproduce(
    context: typer.Context,
    study: Annotated[str | None, typer.Argument(help="A study, as --list shows them.")] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Show all studies, or the runs of one: what they need and would take.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Folder for runs and predictions, which several processes may share.")
    ] = Path("reproduction"),
    page: Annotated[
        Path | None, typer.Option(help="Folder for the page, whose records count as done; default: OUT/STUDY.")
    ] = None,
    budget: Annotated[
        str, typer.Option(help="paper: its own settings; quick: tiny ones, a minute on a CPU, figures without meaning.")
    ] = "paper",
    model: Annotated[list[str] | None, typer.Option(help="Some of the study's networks alone.")] = None,
    size: Annotated[
        int | None, typer.Option(help="M: one of the study's; where it has one alone, another in its place.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many repetitions; default: the paper's number.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of training; default: the paper's.")] = None,
    strengths: Annotated[
        str | None, typer.Option(help="Values of lambda_M with commas, or grid: all that the paper tried.")
    ] = None,
    part: Annotated[str | None, typer.Option("--only", metavar="N/K", help="The N-th of K parts of the runs.")] = None,
    on: On = None,
    cpus: CpusPerRun = 1,
    gpus: GpusPerRun = None,
    of_gpus: Annotated[
        int | None, typer.Option("--gpus", help="With --list: what all would take on so many H200s.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Short for --schedule concurrent --precision bf16.")] = False,
    schedule: Annotated[str | None, typer.Option(help="sequential (the paper's) or concurrent.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 (the default), tf32 or bf16.")] = None,
    weighting_batch: Annotated[
        int | None, typer.Option(help="Samples of p* a step; default: as many as training examples.")
    ] = None,
    statistics: Annotated[
        str,
        typer.Option(
            "--weighting-statistics",
            help="What BatchNorm normalises samples of p* by: running statistics (the paper's), or those of the batch.",
        ),
    ] = "running",
    ood_images: Annotated[
        int | None, typer.Option(help="Take the first so many images of each OOD set alone; tables say so.")
    ] = None,
    three_channels: Annotated[
        bool, typer.Option("--three-channels", help="MNIST as three equal channels, as in the paper's code.")
    ] = False,
    resize: Annotated[
        str,
        typer.Option(help="Pictures of OOD sets: whole (not antialiased, the paper's), or crop (centre, antialiased)."),
    ] = "whole",
    pack: Annotated[bool, typer.Option(help="Keep predictions in files that can be moved, beside the figures.")] = True,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Train nothing; write the page of what there is.")
    ] = False,
    device: Device = None,
    root: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Train what is missing of a study, evaluate it, and write its page beside the paper's figures."""
    from greedy_ensembles.checks import check_choice, check_count
    from greedy_ensembles.engines.execution import as_device
    from greedy_ensembles.paper.catalogue import STUDIES
    from greedy_ensembles.paper.cost import H200, device_found, show_jobs, show_studies
    from greedy_ensembles.paper.images import Sets
    from greedy_ensembles.paper.records import Records
    from greedy_ensembles.paper.runner import Runner
    from greedy_ensembles.paper.study import filter_study, jobs, only, quick

    check_choice("--budget", budget, BUDGETS)
    check_folder(out)
    check_folder(page, "--page")  # not after days of training
    if of_gpus is not None:
        check_count("--gpus", of_gpus, least=1)
    place, tiny = as_device(device), budget == "quick" and study is not None
    machine = H200 if of_gpus else device_found(place)
    protocol = _protocol(
        fast, schedule, precision, weighting_batch, statistics, ood_images, three_channels, resize, tiny
    )
    if study is None:
        if not listed:
            raise ValueError(f"name a study ({', '.join(STUDIES)}), or ask for --list")
        show_studies(list(STUDIES.values()), protocol, machine, root, gpus=of_gpus or 1)
        return
    check_choice("STUDY", study, STUDIES)
    asked = STUDIES[study]
    if asked.special is not None and listed:
        show_studies([asked], protocol, device_found(place), root)
        return
    if asked.special is not None:
        asked.special(page or out / study, progress=not quiet, **_own_options(context, asked.special))
        print(f"Wrote {(page or out / study) / f'{study}.md'}")
        return
    another = size is not None and size not in {case.size for case in asked.cases}
    if tiny and (another or epochs is not None):
        raise ValueError("--budget quick trains 2 members for 1 epoch in any study; leave --size and --epochs out")
    asked = filter_study(
        asked, models=model or [], size=size, seeds=seeds, epochs=epochs, strengths=_strengths(strengths, asked)
    )
    if tiny:
        asked, out = quick(asked, seeds or 2), out / "quick"
    wanted = jobs(asked, protocol)
    if part is not None and not (wanted := only(wanted, part)):
        raise ValueError(f"--only {part} is empty: {study} has fewer runs than parts")
    if listed:
        show_jobs(asked, wanted, Records(out, page), machine, root, gpus=of_gpus or 1)
        return
    failed = 0
    if not page_only:
        where = {"on": on, "cpus": cpus, "gpus": gpus, "device": device}
        runner = Runner(out, Sets(protocol, root), place if on is None else device, not quiet, pack, page)
        failed = _work(runner, asked, wanted, where)
    _write(asked, out, page or out / study, protocol, place, root)
    if failed:
        raise ChildProcessError(f"runs that failed: {failed}; the same command tries them again")


def _own_options(context: typer.Context, special: Callable[..., object]) -> dict[str, Any]:
    """Return what is given of the options that are arguments of a study with settings of its own; refuse others."""
    own, refused = {}, []
    for option in context.command.params:
        name, source = str(option.name), context.get_parameter_source(str(option.name))
        if name in _OF_ALL or source is None or source.name != "COMMANDLINE":
            continue
        if name in inspect.signature(special).parameters:
            own[name] = context.params[name]
        else:
            refused.append("/".join([*option.opts, *option.secondary_opts]))
    if refused:
        raise ValueError(f"{context.params['study']} has settings of its own; leave {', '.join(refused)} out")
    return own


def _protocol(
    fast: bool,
    schedule: str | None,
    precision: str | None,
    weighting_batch: int | None,
    statistics: str,
    ood_images: int | None,
    three_channels: bool,
    resize: Any,
    tiny: bool,
) -> "Protocol":
    from greedy_ensembles.checks import check_choice, check_count
    from greedy_ensembles.data.image_set import Resize
    from greedy_ensembles.engines.execution import Precision
    from greedy_ensembles.method import SCHEDULES, Statistics
    from greedy_ensembles.paper.study import Protocol

    schedule = schedule or ("concurrent" if fast else "sequential")
    precision = precision or ("bf16" if fast else "float32")
    check_choice("--schedule", schedule, SCHEDULES)
    check_choice("--precision", precision, get_args(Precision))
    check_choice("--weighting-statistics", statistics, get_args(Statistics))
    check_choice("--resize", resize, get_args(Resize))
    for name, value in (("--weighting-batch", weighting_batch), ("--ood-images", ood_images)):
        if value is not None:
            check_count(name, value, least=1)
    return Protocol(schedule, precision, weighting_batch, statistics, ood_images, three_channels, resize, tiny)


def _strengths(text: str | None, study: "Study") -> list[float]:
    if text is None:
        return []
    if text == "grid":
        if not study.grid:
            raise ValueError(
                f"the paper has no grid of lambda_M for {study.name}; name values, as in --strengths 1,3,5"
            )
        return list(study.grid)
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--strengths takes numbers with commas, or grid; got {text!r}") from None


def _work(runner: "Runner", study: "Study", jobs: list["Job"], where: dict[str, Any]) -> int:
    """Do what is missing and can be done, here or elsewhere, and return how many runs failed, after saying why."""
    from greedy_ensembles.data import data_root
    from greedy_ensembles.paper.images import CORRUPTED, missing
    from greedy_ensembles.sweeps.executor import open_executor
    from greedy_ensembles.sweeps.processes import one_thread
    from greedy_ensembles.sweeps.sweep import reason

    root, quick = runner.sets.root, runner.sets.protocol.quick
    jobs = [job for job in jobs if not runner.records.complete(job, study)]
    if not quick and jobs:
        absent = {job: missing(job.case, study, root) for job in jobs}
        names = ", ".join(dict.fromkeys(name for names in absent.values() for name in names))
        possible = [job for job in jobs if not absent[job]]
        if not possible:
            raise ValueError(
                f"{study.name} needs {names}, not in {data_root(root)}: `greedy-ensembles data download` gets data "
                f"sets, and --budget quick makes do with stand-ins{_CORRUPTIONS if CORRUPTED in names else ''}"
            )
        if len(possible) < len(jobs):
            say(f"{len(jobs) - len(possible)} of {len(jobs)} runs are left out: {names} not in {data_root(root)}")
        jobs = possible
        if study.evaluated:
            _say_what_is_not_judged(study, jobs, runner)
    failures: dict[str, Exception] = {}
    try:
        alone = where["on"] is None and quick and str(runner.device) == "cpu"
        if jobs:
            with one_thread() if alone else nullcontext(), open_executor(**where, storage=runner.out) as executor:
                failures = runner.work(study, jobs, say, executor)
    except KeyboardInterrupt as interruption:
        goes_on(interruption)
        raise
    for name, error in failures.items():
        say(f"{name} failed: {reason(error)}")
    return len(failures)


def _say_what_is_not_judged(study: "Study", to_do: list["Job"], runner: "Runner") -> None:
    """Say before training, which may take days, which OOD sets it cannot be judged on, and which tables leave out."""
    from greedy_ensembles.benchmark.presets import PRESETS, is_there
    from greedy_ensembles.data import data_root
    from greedy_ensembles.paper.study import jobs

    root = runner.sets.root
    for dataset in dict.fromkeys(job.case.dataset for job in to_do):
        there = [name for name in PRESETS[dataset] if is_there(name, root)]
        if absent := [name for name in PRESETS[dataset] if name not in there]:
            say(f"not in {data_root(root)}, so no run on {dataset} is judged on: {', '.join(absent)}")
        every = [job for job in jobs(study, runner.sets.protocol) if job.case.dataset == dataset]
        done = [record for job in every if (record := runner.records.complete(job, study))]
        judged = [{result["name"] for result in record.evaluation["ood"]} for record in done if record.evaluation]
        sets = [set(there), *judged]
        if uneven := [name for name in PRESETS[dataset] if len({name in one for one in sets}) == 2]:
            say(f"runs that are done were judged otherwise; tables with both leave out {', '.join(uneven)}")


def _write(
    study: "Study", out: Path, folder: Path, protocol: "Protocol", device: "torch.device", root: Path | None
) -> None:
    from greedy_ensembles.paper.cost import device_found
    from greedy_ensembles.paper.pages import write_page
    from greedy_ensembles.paper.records import Records, gather

    records = Records(out, folder)
    sections = gather(study, protocol, records)
    if not any(gathered.done or gathered.diverged for gathered in sections):
        others = f"; it has {', '.join(records.names()[:3])}, ..." if records.names() else ""
        raise ValueError(
            f"{records.folder} has no record of a run of this study under these options{others}. Give the options that "
            "the runs were made with, or leave --page-only out"
        )
    command, images = ["greedy-ensembles", *sys.argv[1:]], _examples(study, protocol, root)
    path = write_page(study, protocol, sections, folder, command, device_found(device), images)
    missing = len({job for gathered in sections for job in gathered.missing})  # sections may share some
    print(f"Wrote {path}" + (f"; runs still missing: {missing}" if missing else ""))


def _examples(study: "Study", protocol: "Protocol", root: Path | None) -> dict[str, dict[str, "Bytes"]]:
    """Return the OOD images for pictures of examples, of those in-domain sets whose data are there."""
    from greedy_ensembles.paper.images import Sets, missing

    if not study.pictures:
        return {}
    datasets = dict.fromkeys(case.dataset for case in study.cases if protocol.quick or not missing(case, study, root))
    sets = Sets(protocol, root)
    return {dataset: {name: images.inputs for name, images in sets.bench(dataset).ood.items()} for dataset in datasets}

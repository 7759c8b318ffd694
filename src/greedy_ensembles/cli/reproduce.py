"""``greedy-ensembles reproduce``: the paper's studies, from training to a page beside its figures."""

import inspect
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer
from rich.console import Console
from rich.markdown import Markdown

from greedy_ensembles.cli.app import GOES_ON, Cpus, DataFolder, Device, Gpus, On, Quiet, check_folder, command, say

if TYPE_CHECKING:
    import torch

    from greedy_ensembles.paper.runner import Runner
    from greedy_ensembles.paper.study import Job, Study

BUDGETS = ("paper", "quick")
_OF_ALL = ("study", "out", "page", "quiet")  #: what each study has, also one with settings of its own
_CORRUPTIONS = "; `pip install 'greedy-ensembles[corruptions]'` lets it make corruptions like those of CIFAR-10-C"


@command("reproduce", interrupted=GOES_ON)
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
    cpus: Cpus = 1,
    gpus: Gpus = None,
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
    from greedy_ensembles.data.image_set import Resize
    from greedy_ensembles.engines.execution import Precision, as_device
    from greedy_ensembles.method import SCHEDULES, Statistics
    from greedy_ensembles.paper.catalogue import STUDIES
    from greedy_ensembles.paper.cost import H200, device_found, show_jobs, show_studies
    from greedy_ensembles.paper.images import Sets
    from greedy_ensembles.paper.records import Records
    from greedy_ensembles.paper.runner import Runner
    from greedy_ensembles.paper.study import Protocol, filter_study, jobs, only, quick

    schedule = schedule or ("concurrent" if fast else "sequential")
    precision = precision or ("bf16" if fast else "float32")
    check_choice("--budget", budget, BUDGETS)
    check_choice("--schedule", schedule, SCHEDULES)
    check_choice("--precision", precision, get_args(Precision))
    check_choice("--weighting-statistics", statistics, get_args(Statistics))
    check_choice("--resize", resize, get_args(Resize))
    counts = {"--gpus": of_gpus, "--weighting-batch": weighting_batch, "--ood-images": ood_images}
    for option, count in counts.items():
        if count is not None:
            check_count(option, count, least=1)
    check_folder(out)
    check_folder(page, "--page")  # not after days of training
    place, tiny, small = as_device(device), budget == "quick" and study is not None, cast(Resize, resize)
    machine = H200 if of_gpus else device_found(place)
    protocol = Protocol(schedule, precision, weighting_batch, statistics, ood_images, three_channels, small, tiny)
    if study is None and not listed:
        raise ValueError(f"name a study ({', '.join(STUDIES)}), or ask for --list")
    if study is None:
        show_studies(list(STUDIES.values()), protocol, machine, root, gpus=of_gpus or 1)
        return
    check_choice("STUDY", study, STUDIES)
    asked = STUDIES[study]
    if asked.special is not None:
        if listed:
            show_studies([asked], protocol, machine, root)
            return
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
    runner = Runner(out, Sets(protocol, root), place if on is None else device, not quiet, pack, page)
    where = {"on": on, "cpus": cpus, "gpus": gpus, "device": device}
    failed = 0 if page_only else _work(runner, asked, wanted, where)
    _write(runner, asked, page or out / study, place)
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
    from greedy_ensembles.checks import reason
    from greedy_ensembles.data import data_root
    from greedy_ensembles.paper.images import CORRUPTED, missing
    from greedy_ensembles.sweeps.executor import one_thread, open_executor

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
    alone = where["on"] is None and quick and str(runner.device) == "cpu"
    if jobs:
        with one_thread() if alone else nullcontext(), open_executor(**where, storage=runner.out) as executor:
            failures = runner.work(study, jobs, say, executor)
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


def _write(runner: "Runner", study: "Study", folder: Path, device: "torch.device") -> None:
    from greedy_ensembles.paper.cost import device_found
    from greedy_ensembles.paper.images import missing
    from greedy_ensembles.paper.pages import write_page
    from greedy_ensembles.paper.records import Records, gather

    sets, records = runner.sets, Records(runner.out, folder)
    sections = gather(study, sets.protocol, records)
    if not any(gathered.done or gathered.diverged for gathered in sections):
        others = f"; it has {', '.join(records.names()[:3])}, ..." if records.names() else ""
        raise ValueError(
            f"{records.folder} has no record of a run of this study under these options{others}. Give the options that "
            "the runs were made with, or leave --page-only out"
        )
    cases = [case for case in study.cases if sets.protocol.quick or not missing(case, study, sets.root)]
    benches = {case.dataset: sets.bench(case.dataset) for case in cases if study.pictures}  # for pictures of examples
    images = {dataset: {name: own.inputs for name, own in bench.ood.items()} for dataset, bench in benches.items()}
    command = ["greedy-ensembles", *sys.argv[1:]]
    path = write_page(study, sets.protocol, sections, folder, command, device_found(device), images)
    absent = len({job for gathered in sections for job in gathered.missing})  # sections may share some
    print(f"Wrote {path}" + (f"; runs still missing: {absent}" if absent else ""))


@command("two-moons")
def two_moons(
    out: Annotated[Path, typer.Option(help="Folder for the picture, the figures and the runs.")],
    seed: Annotated[int, typer.Option(help="Where all random numbers come from.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Train Deep Ensembles and the method on two moons, and draw the paper's Figure 2."""
    from greedy_ensembles.checks import check_count
    from greedy_ensembles.paper import two_moons as study  # brings matplotlib, which --help can do without

    check_folder(out)
    check_count("--seed", seed, least=0)
    study.run(out, seed, progress=not quiet)
    _show(out / "two-moons.md")


@command("illustrate")
def illustrate(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the figures.")],
    seed: Annotated[int, typer.Option(help="The first of the 20 seeds.")] = 0,
) -> None:
    """Approximate a density on the line in three ways, and draw the paper's Figure 1."""
    from greedy_ensembles.checks import check_count
    from greedy_ensembles.paper import illustrate as study

    check_folder(out)
    check_count("--seed", seed, least=0)
    study.run(out, seed)
    _show(out / "illustrate.md")


def _show(page: Path) -> None:
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    Console().print(Markdown("\n".join(rows)))
    print(f"Wrote {page}, {page.stem}.png and records/{page.stem}.json")


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
    from greedy_ensembles.checks import check_count
    from greedy_ensembles.paper import guarantee as study

    check_folder(out)
    check_count("--seed", seed, least=0)
    results = study.run(out, instances, seed, progress=not quiet)
    count = sum(len(measured["best"]) for measured in results.values())
    print(f"{count:,} instances in {len(results)} cells")
    print(f"Wrote {out / 'guarantee.md'}, guarantee.png and records/guarantee.csv")

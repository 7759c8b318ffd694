"""From runs and what was found about them to the page: what was trained on each data set, how it went, how good it is.

Images of the lowest and the highest scores say what the ensemble takes for known and for strange; some drawn by lot
alone show what is usual.
"""

import base64
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from greedy_ensembles.benchmark.comparison import Comparison
from greedy_ensembles.benchmark.evaluation import Estimate, OutOfDistribution, estimate
from greedy_ensembles.benchmark.runs import RunFacts, group
from greedy_ensembles.benchmark.stored_runs import facts_of
from greedy_ensembles.data.image_set import Bytes, to_picture
from greedy_ensembles.metrics import auroc, average_precision
from greedy_ensembles.report.detection import Averages, average_scores, draw_histogram, draw_precision_recall, draw_roc
from greedy_ensembles.report.figure import Chart, draw_chart, method_styles
from greedy_ensembles.report.page import Evaluated, Galleries, OodView, Part, Picture, TrainedRun
from greedy_ensembles.report.planes import KnownPoints, maps, takes_points
from greedy_ensembles.report.results import IN_DOMAIN, OOD, notes, plural, spelled, tables
from greedy_ensembles.report.table import Column, Entry, Table
from greedy_ensembles.runs import Run
from greedy_ensembles.storage import FolderError

#: Charts over epochs: the field of a history, and its title.
_CHARTS = {"loss": "Loss", "diversity": "Diversity term", "validation_accuracy": "Validation accuracy"}
_LARGEST = 1e100  # sums of such numbers are finite, and axes can show them
_LEFT_OUT = ("model", "data")  # of the configuration: shapes of all parameters, and a hash
_EXAMPLES = 8  # images of each kind: a row on most screens

_Labelled = Sequence[tuple[str, Run, RunFacts]]


@dataclass(frozen=True, eq=False)
class Findings:
    """What was found about the runs on one data set: a comparison and the images behind it, or why there is none."""

    comparison: Comparison | None = None
    images: Mapping[str, Bytes] | None = None  #: by the names of sets, in the order of their scores
    notes: Sequence[str] = ()


def build_page(
    runs: Sequence[Run],
    findings: Mapping[str, Findings] | None = None,
    points: Callable[[Run], KnownPoints | None] = lambda run: None,
) -> list[Part]:
    """Return the parts of the page of some runs, one a data set, with findings by the name that `dataset_of` gives it.

    `points` goes from a run on inputs of two numbers to the points that it was trained on, where they are known.
    """
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    parts: dict[str, list[Run]] = {}
    for run in runs:
        parts.setdefault(dataset_of(run), []).append(run)
    return [
        _part(name, f"part-{number}", of_part, (findings or {}).get(name, Findings()), points)
        for number, (name, of_part) in enumerate(parts.items(), start=1)
    ]


def dataset_of(run: Run) -> str:
    """Return what a run was trained on: the name of an image set, or arrays, by the beginning of their hash."""
    data = run.information.get("data")
    if isinstance(data, dict):
        return str(data.get("name"))
    return f"arrays {str(run.configuration.get('data'))[:8]}"


def _part(
    name: str, anchor: str, runs: Sequence[Run], findings: Findings, points: Callable[[Run], KnownPoints | None]
) -> Part:
    facts = {each.source: (run, each) for run in runs for each in [facts_of(run)]}
    groups = group([each for _, each in facts.values()])  # in the order of tables
    labelled = [(label, *facts[each.source]) for label, same in groups.items() for each in same]
    flat, notes = _loadable([(label, run) for label, run, _ in labelled if takes_points(run)])
    known = points(flat[0][1]) if flat else None
    repeated = Counter(label for label, _ in flat)
    seeds = [f", seed {run.configuration['seed']}" if repeated[label] > 1 else "" for label, run in flat]
    told = [(label + seed, run) for (label, run), seed in zip(flat, seeds, strict=True)]
    compared = findings.comparison
    return Part(
        name if known is None else known.name,
        anchor,
        _validated(labelled) if compared is None else finding(compared),
        trained_table(labelled),
        [trained_run(label, run) for label, run, _ in labelled],
        [*findings.notes, *notes],
        None if compared is None else evaluated(compared, findings.images or {}),
        maps(told, known) if told else (),
    )


def _loadable(labelled: Sequence[tuple[str, Run]]) -> tuple[list[tuple[str, Run]], list[str]]:
    """Return the runs whose members can be built, and notes on the others: their curves can be shown all the same."""
    found, notes = [], []
    for label, run in labelled:
        try:
            run.ensemble  # noqa: B018 (which builds it, and keeps it)
        except FolderError:
            raise
        except ValueError as error:
            notes.append(f"No map: {error}.")
        else:
            found.append((label, run))
    return found, notes


def finding(comparison: Comparison) -> Table:
    """Return the means over natural and over synthetic OOD sets, and the accuracy, of every method.

    Noise is easy, and most sets may be noise, so one mean over both kinds would speak of noise. The title says who is
    best at each. Methods are equally good whose means are printed alike, or within standard errors.
    """
    first, accuracy = comparison.first, IN_DOMAIN[0]
    found: dict[str, dict[str, Entry]] = {
        method.label: {"method": Entry(method.label), "seeds": Entry(len(method.evaluations))}
        for method in comparison.methods
    }
    for row in comparison.in_domain_rows:
        found[row.method] |= {key: Entry(figure.ours) for key, figure in row.figures.items() if key == accuracy.key}
    columns: list[Column] = []
    sentences: list[str] = []
    remarks: list[str] = []
    for kind in ("natural", "synthetic") if first.ood else ():
        if not (sets := first.of_kind(kind)):
            continue
        for column in (OOD[0], OOD[2]):
            columns.append(replace(column, key=f"{column.key}_{kind}", heading=f"{column.heading}, {kind}"))
            for method in comparison.methods:
                each_seed = [[getattr(each, column.key) for each in one.of_kind(kind)] for one in method.evaluations]
                found[method.label][columns[-1].key] = Entry(estimate([float(np.mean(own)) for own in each_seed]))
        areas = {label: cells[columns[-2].key].value for label, cells in found.items()}
        sentence, tied = _best({label: each for label, each in areas.items() if isinstance(each, Estimate)})
        sentences.append(f"{kind.capitalize()} OOD inputs are detected {sentence} over {plural(len(sets), 'set')}")
        remarks += ["Equally well: within standard errors."] if tied and not remarks else []
    columns.append(accuracy)
    rows = sorted(found.values(), key=lambda row: float(row[columns[0].key].sort_key), reverse=True)
    if len(rows) > 1 and any(row["seeds"].value == 1 for row in rows):
        remarks = ["With one seed, a difference may be chance."]
    if sentences:
        remarks.insert(0, f"OOD score: {first.score.replace('_', ' ')}. Synthetic is noise, natural all else.")
    title = ". ".join(sentences) or first.in_domain.name
    return Table(title, [Column("method"), Column("seeds"), *columns], rows, remarks, "method")


def _best(areas: Mapping[str, Estimate]) -> tuple[str, bool]:
    """Return by which methods OOD inputs are detected best, with their mean AUCs, and whether these are several."""
    (_, best), *_ = ranked = sorted(areas.items(), key=lambda each: each[1].mean, reverse=True)
    printed, low = OOD[0].spelled(best.mean, None), best.mean - (best.standard_error or 0)
    equal = {
        label: spelled_mean
        for label, each in ranked
        if (spelled_mean := OOD[0].spelled(each.mean, None)) == printed
        or (each.standard_error is not None and each.mean + each.standard_error >= low)
    }
    lead = "equally well by" if len(equal) > 1 else "best by" if len(areas) > 1 else "by"
    return f"{lead} {' and '.join(equal)}: mean AUC {' and '.join(equal.values())}", len(equal) > 1


def _validated(labelled: _Labelled) -> Table:
    found: dict[str, list[float]] = {}
    (count, *others) = {_number(run.information.get("validation_examples")) for _, run, _ in labelled}
    counted = "" if count is None or others else f"; validation accuracy is of {count:,.0f} examples"
    for label, run, _ in labelled:
        accuracy = _accuracy(run)
        found.setdefault(label, []).extend([] if accuracy is None else [accuracy])
    rows = [
        {"method": Entry(label), "accuracy": Entry(estimate(values) if values else None)}
        for label, values in found.items()
    ]
    columns = [Column("method"), Column("accuracy", "validation accuracy (%)", 100, 2, "higher")]
    return Table(f"Nothing was evaluated on OOD data{counted}", columns, rows, label="method")


def trained_table(labelled: _Labelled) -> Table:
    """Return a row for each run."""
    headings = ["run", "method", "network", "M", "lambda_M", "seed", "epochs", "validation accuracy", "training time"]
    return Table("Runs", [Column(heading) for heading in headings], [_row(*entry) for entry in labelled])


def _row(label: str, run: Run, facts: RunFacts) -> dict[str, Entry]:
    epochs = run.configuration["recipe"].get("epochs", "")
    seconds = sum(_number(member.get("seconds")) or 0.0 for member in run.members)
    accuracy = _accuracy(run)
    examples = _number(run.information.get("validation_examples"))  # older folders do not say
    counted = "" if examples is None else f" of {examples:,.0f}"
    return {
        "run": Entry(str(run.folder)),
        "method": Entry(label),
        "network": Entry(facts.architecture),
        "M": Entry(run.size, text=f"{run.size}" if run.finished else f"{len(run.members)} of {run.size}"),
        "lambda_M": Entry(0.0, text="") if facts.strength is None else Entry(float(facts.strength)),
        "seed": Entry(facts.seed, text=f"{facts.seed}"),
        "epochs": Entry(_number(epochs), text=f"{epochs}"),
        "validation accuracy": Entry(accuracy, text="" if accuracy is None else f"{accuracy:.2%}{counted}"),
        "training time": Entry(seconds, text=spelled(seconds)),
    }


def _accuracy(run: Run) -> float | None:
    found = [value for member in run.members if (value := _number(member.get("validation_accuracy"))) is not None]
    return float(np.mean(found)) if found else None


def trained_run(label: str, run: Run) -> TrainedRun:
    """Return charts of every member's epochs, and the configuration in full."""
    information = run.information
    configuration = {key: value for key, value in run.configuration.items() if key not in _LEFT_OUT}
    shown = {**{key: value for key, value in information.items() if key != "configuration"}, **configuration}
    members = [f"member {number}" for number in range(1, len(run.members) + 1)]
    selected = ", ".join(str(member.get("selected_epoch", "?")) for member in run.members)
    summary = f"Selected epochs: {selected or 'none yet'}."
    if started := information.get("started"):
        summary += f" Started {started} on {information.get('device', '')}."
    charts = [chart for own in _CHARTS.items() if (chart := _chart(run, members, *own)) is not None]
    name = f"{label}, seed {run.configuration['seed']} ({run.folder})"
    return TrainedRun(name, summary, charts, members, json.dumps(shown, indent=2))


def _chart(run: Run, members: Sequence[str], field: str, title: str) -> Chart | None:
    """Return one field over epochs, None where no member has it: Deep Ensembles have no diversity term."""
    found = {name: _points(history, field) for name, history in zip(members, run.histories, strict=True)}
    lines = {name: points for name, points in found.items() if len(points[0])}
    if not lines:
        return None
    ends = ", ".join(f"{points[1][-1]:.3g}" for points in lines.values())
    styles = dict(zip(members, method_styles(len(members)), strict=True))  # the same in all charts

    def draw(axis: Axes) -> None:
        for name, (x, y) in lines.items():
            marker = "o" if len(x) == 1 else ""
            style = styles[name]
            axis.plot(x, y, color=style.colour, linestyle=style.linestyle, marker=marker, clip_on=False, gid=name)
        axis.margins(x=0)
        axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))

    alt = f"{title} over epochs, a line for each of {len(lines)} members; they end at {ends}."
    return draw_chart(title, alt, draw, x_label="epoch", y_label=title.lower())


def _points(history: Sequence[Mapping[str, Any]], field: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(record.get("epoch"), record.get(field)) for record in history if isinstance(record, Mapping)]
    known = [(x, y) for x, y in pairs if _number(x) is not None and _number(y) is not None]
    x, y = np.array(known, dtype=np.float64).reshape(-1, 2).T
    return x, y


def _number(value: Any) -> float | None:
    """Return a number that can be drawn, None for anything else: histories may come from other people."""
    proper = isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST
    return float(value) if proper else None


def evaluated(comparison: Comparison, images: Mapping[str, Bytes]) -> Evaluated:
    """Return all that the page shows of a comparison; `images` by the names of sets, in the order of their scores."""
    inside, label = comparison.first.in_domain, comparison.first.score.replace("_", " ")
    averages = [average_scores(comparison, number) for number in range(len(comparison.first.ood))]
    views = [
        _view(result, scores, label, images.get(result.name))
        for result, scores in zip(comparison.first.ood, averages, strict=True)
    ]
    known: Galleries = {}
    if averages and inside.name in images:
        scores = {method: pair[0] for method, pair in averages[0].items()}
        known = galleries(images[inside.name], inside.name, scores, label)
    methods = [method.label for method in comparison.methods]
    return Evaluated(tables(comparison), notes(comparison), methods, views, known)


def _view(result: OutOfDistribution, scores: Averages, label: str, images: Bytes | None) -> OodView:
    inside = len(next(iter(scores.values()))[0])
    note = f" Note: {result.note}." if result.note else ""
    counts = f"{result.images:,} OOD examples (the positive class) against {inside:,} in-domain ones"
    found = ", ".join(f"{method} {auroc(*pair):.3f}" for method, pair in scores.items())
    precise = ", ".join(f"{method} {average_precision(*pair):.3f}" for method, pair in scores.items())
    charts = [
        draw_chart("ROC", f"ROC curves on {result.name}; areas: {found}.", partial(draw_roc, averages=scores)),
        draw_chart(
            "Precision and recall",
            f"Precision-recall curves on {result.name}; average precision: {precise}.",
            partial(draw_precision_recall, averages=scores),
        ),
    ]
    for method, pair in scores.items():
        medians = " and ".join(f"{np.median(part):.3g}" for part in pair)
        charts.append(
            draw_chart(
                f"{label.capitalize()}: {method}",
                f"Histograms of {label} by {method}; medians in-domain and OOD: {medians}.",
                partial(draw_histogram, averages=scores, method=method),
                x_label=f"{label}; grey: in-domain",
                y_label="examples (%)",
            )
        )
    outside = {method: pair[1] for method, pair in scores.items()}
    shown = {} if images is None else galleries(images, result.name, outside, label)
    return OodView(result.name, f"{counts}, by {label}.{note}", charts, shown)


def galleries(images: Bytes, name: str, scores: Mapping[str, np.ndarray], label: str) -> Galleries:
    """Return the images of the lowest and of the highest scores, and some drawn by lot, with the scores of all methods.

    The last method's score decides, and puts them in order; `label` is what the score is called.
    """
    last = list(scores.values())[-1]
    order = np.argsort(last, kind="stable")
    lot = np.random.default_rng(0).permutation(len(images))[:_EXAMPLES]
    chosen = {
        f"Most certain: the lowest {label}": order[:_EXAMPLES],
        f"Least certain: the highest {label}": order[::-1][:_EXAMPLES],
        "Drawn by lot": lot[np.argsort(last[lot], kind="stable")],
    }
    return {
        title: [_example(images[index], name, index, scores) for index in indices.tolist()]
        for title, indices in chosen.items()
    }


def _example(image: Bytes, name: str, index: int, scores: Mapping[str, np.ndarray]) -> Picture:
    file = io.BytesIO()
    to_picture(image).save(file, "PNG", optimize=True)
    address = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    figures = [f"{values[index]:.3f}" for values in scores.values()]
    said = ", ".join(f"{method} {figure}" for method, figure in zip(scores, figures, strict=True))
    return Picture(address, f"Image {index} of {name}; score: {said}", figures)

"""Tables of the studies that are not about OOD sets: what training costs, and corrupted images."""

import statistics
from collections.abc import Iterable

from greedy_ensembles.benchmark import paper
from greedy_ensembles.benchmark.evaluation import Estimate, estimate
from greedy_ensembles.data.cifar import SEVERITIES
from greedy_ensembles.paper.corruptions import NOTE, is_generated
from greedy_ensembles.paper.gather import Gathered, training_note
from greedy_ensembles.paper.records import Record
from greedy_ensembles.paper.runner import recipe_of
from greedy_ensembles.paper.study import DEEP, Case
from greedy_ensembles.report.table import markdown_table

_CORRUPTED = ("accuracy", "nll")


def overhead_table(gathered: Gathered) -> str:
    """Return seconds of training and of prediction by method, with how much more the greedy one takes."""
    cases = _by_case(gathered)
    deep = next((statistics.fmean(_epochs(records)) for case, records in cases.items() if case.strength is None), None)
    rows = []
    for case, records in cases.items():
        seconds = statistics.fmean(_epochs(records))
        more = "" if deep is None or case.strength is None else f"{100 * (seconds / deep - 1):+.0f} %"
        rows.append([gathered.section.label(case), f"{len(records)}", f"{seconds:.3f}", more, _predicting(records)])
    heading = ["method", "runs", "seconds a member and epoch", "more than Deep Ensembles", "ms an image, all members"]
    printed = [row for row in paper.table("overhead") if row["architecture"] == gathered.section.cases[0].model]
    lines = [
        f"The paper, on one V100: {row['de_hours']} hours for Deep Ensembles, {row['greedy_hours']} for the method, "
        f"{row['overhead_percent']} % more."
        for row in printed
    ]
    several = all(recipe_of(job.case, job.protocol).epochs > 1 for job in gathered.done)
    note = "Seconds are those of a member's epoch, the mean over members" + (
        ", without each one's first epoch." if several else "; the only one, which includes getting ready."
    )
    return "\n\n".join([markdown_table(heading, rows), " ".join([note, *lines]), _notes(gathered)]).rstrip()


def overhead_sentences(gathered: Gathered) -> list[str]:
    """Return how much longer the greedy ensembles take to train and to predict than Deep Ensembles, in words."""
    cases = _by_case(gathered)
    deep = next((records for case, records in cases.items() if case.strength is None), None)
    if deep is None:
        return ["There are no Deep Ensembles to compare with."] if cases else []
    sentences = []
    for case, records in cases.items():
        if case.strength is None:
            continue
        training = statistics.fmean(_epochs(records)) / statistics.fmean(_epochs(deep)) - 1
        text = f"{gathered.section.label(case)}: {100 * training:+.1f} % of training time beside Deep Ensembles"
        printed = [row for row in paper.table("overhead") if row["architecture"] == case.model]
        text += "".join(f", where the paper has +{row['overhead_percent']} %" for row in printed)
        if (ours := _images(records)) and (theirs := _images(deep)):
            text += f"; {100 * (statistics.fmean(ours) / statistics.fmean(theirs) - 1):+.1f} % of prediction time"
        sentences.append(f"{text}.")
    return sentences


def corruption_sentences(gathered: Gathered) -> list[str]:
    """Return at how many severities a greedy ensemble is more accurate, and by how much at the last, in words."""
    found = severities(gathered)
    if DEEP not in found:
        return ["There are no Deep Ensembles to compare with."] if found else []
    sentences = []
    for label, figures in found.items():
        if label == DEEP:
            continue
        pairs = list(zip(figures["accuracy"], found[DEEP]["accuracy"], strict=True))
        gains = [100 * (ours.mean - theirs.mean) for ours, theirs in pairs]
        ahead = sum(gain > 0 for gain in gains)
        nll = figures["nll"][-1].mean - found[DEEP]["nll"][-1].mean
        sentences.append(
            f"{label} is more accurate than Deep Ensembles at {ahead} of {len(gains)} severities; at the last, by "
            f"{gains[-1]:+.2f} points, and {100 * nll:+.2f} in NLL x 100."
        )
    return sentences


def corruption_table(gathered: Gathered) -> str:
    """Return accuracy and NLL by severity, and over which corruptions they are."""
    seeds = {gathered.section.label(case): len(records) for case, records in _by_case(gathered).items()}
    found = severities(gathered)
    rows = [
        [str(severity + 1), method, str(seeds[method]), *(_hundredfold(figures[name][severity]) for name in _CORRUPTED)]
        for severity in range(len(SEVERITIES))
        for method, figures in found.items()
    ]
    heading = ["severity", "method", "seeds", "accuracy (%)", "NLL x 100"]
    text = f"Means over {corruption_names(gathered)}, ± standard error over seeds."
    made = any(map(is_generated, _names(gathered)))
    notes = [f"- the corruptions are {NOTE}", _notes(gathered)] if made else [_notes(gathered)]
    return "\n\n".join([markdown_table(heading, rows), text, "\n".join(notes)])


def severities(gathered: Gathered) -> dict[str, dict[str, list[Estimate]]]:
    """Return accuracy and NLL by method and severity: the mean over corruptions of each seed, and then over seeds."""
    return {
        gathered.section.label(case): {
            name: [estimate(_over_corruptions(records, severity, name)) for severity in SEVERITIES]
            for name in _CORRUPTED
        }
        for case, records in _by_case(gathered).items()
    }


def corruption_names(gathered: Gathered) -> str:
    """Return how many corruptions there are, and which."""
    names = dict.fromkeys(name.partition("/")[0] for name in _names(gathered))
    return f"{len(names)} corruption{'s' * (len(names) != 1)} ({', '.join(names)})"


def _names(gathered: Gathered) -> list[str]:
    """Return the corruptions by name and severity, which must be the same in all runs."""
    (first, found), *rest = ((job.name, list(record.corruptions or {})) for job, record in gathered.done.items())
    for name, other in rest:
        if set(other) != set(found):
            raise ValueError(
                f"{gathered.section.title}: {name} was judged on other corruptions than {first}. Delete the records of "
                "the former, and run again: runs whose folders are there are judged anew, and not trained"
            )
    return found


def _notes(gathered: Gathered) -> str:
    notes = dict.fromkeys(training_note(record) for record in gathered.done.values())
    return "\n".join(f"- {note}" for note in notes if note)


def _by_case(gathered: Gathered) -> dict[Case, list[Record]]:
    cases: dict[Case, list[Record]] = {}
    for job, record in gathered.done.items():
        cases.setdefault(job.case, []).append(record)
    return cases


def _epochs(records: Iterable[Record]) -> list[float]:
    return [record.epoch_seconds for record in records]


def _predicting(records: Iterable[Record]) -> str:
    times = _images(records)
    return f"{statistics.fmean(times):.3f}" if times else ""


def _images(records: Iterable[Record]) -> list[float]:
    """Return milliseconds an image."""
    return [1000 * r.prediction["seconds"] / r.prediction["images"] for r in records if r.prediction]


def _over_corruptions(records: Iterable[Record], severity: int, metric: str) -> list[float]:
    """Return the mean over corruptions at a severity, one for each record."""
    return [
        statistics.fmean(
            values[metric] for name, values in (record.corruptions or {}).items() if name.endswith(f"/{severity}")
        )
        for record in records
    ]


def _hundredfold(value: Estimate) -> str:
    error = "" if value.standard_error is None else f"±{100 * value.standard_error:.2f}"
    return f"{100 * value.mean:.2f}{error}"

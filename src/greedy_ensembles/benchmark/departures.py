"""In what a run was trained otherwise than the paper's, for readers who see the figures of both beside each other."""

from greedy_ensembles.benchmark import paper
from greedy_ensembles.benchmark.runs import PUBLISHED, RunFacts
from greedy_ensembles.training import Recipe
from greedy_ensembles.training.configuration import describe, differences

_NO_MATTER = {"deterministic", "members_at_once"}  # the one changes rounding; the other is told with the schedule


def departures(facts: RunFacts) -> str:
    """Return them in words, empty where there are none, or where the paper has no such training."""
    try:
        published = describe(Recipe.paper(facts.dataset, facts.architecture))
    except ValueError:
        return ""
    recipe = {name: value for name, value in facts.configuration["recipe"].items() if name in published}
    known = {name: published[name] for name in recipe}
    found = [
        f"{where} {ours} instead of {theirs}"
        for where, ours, theirs in differences(recipe, known)
        if where not in _NO_MATTER
    ]
    if facts.strength and facts.configuration.get("schedule", "sequential") != "sequential":
        groups = "" if facts.groups is None else f" in groups of {facts.groups}"
        found.append(f"schedule {facts.configuration['schedule']}{groups} instead of sequential")
    if facts.information.get("extended_from"):
        found.append("grown from fewer members")
    told = [f"trained otherwise than in the paper: {', '.join(found)}"] if found else []
    if facts.architecture in PUBLISHED and not facts.is_published:
        settings = ", ".join(f"{name}={value}" for name, value in PUBLISHED[facts.architecture].items())
        told.append(f"the paper's {facts.architecture} has {settings}, so its figures are not beside these")
    if facts.setting is not None and not paper.strength_is_known(facts.setting):
        told.append("the paper does not say which lambda_M it took here")
    return "; ".join(told)

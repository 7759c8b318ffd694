import dataclasses
import math

import pytest

from greedy_ensembles.benchmark import Comparison, Estimate, Method, RunFacts
from greedy_ensembles.benchmark.evaluation import Cell
from greedy_ensembles.benchmark.runs import Setting

DEEP = Setting("PreResNet8", "mnist", 5, "deep")
PRINTED = {
    ("accuracy", ""): Cell(0.9943, 0.0001),
    ("auc", "uniform"): Cell(0.3, 0.22),
    ("auc", "dtd"): Cell(0.48, None),
}


class Tables:
    """Published figures of ensembles of five: an accuracy, and areas on two sets."""

    def setting_of(self, facts):
        named = facts.architecture, facts.dataset, facts.size, facts.configuration["method"]["label"], facts.strength
        return Setting(*named) if facts.size == 5 else None

    def cell(self, setting, metric, ood=""):
        return None if setting is None else PRINTED.get((metric, ood))

    def image_count(self, ood):
        return {"uniform": 25_000, "svhn": 73_257}.get(ood)

    def departures(self, facts):
        return f"epochs {facts.configuration['recipe']['epochs']} instead of 20"


@pytest.fixture
def two_seeds(evaluation):
    """Two seeds, whose areas are 0.8 and 0.6 on noise, 0.5 and 0.9 on textures."""
    return evaluation(accuracy=0.9, areas={"uniform": 0.8, "dtd": 0.5}), evaluation(
        accuracy=0.94, areas={"uniform": 0.6, "dtd": 0.9}
    )


def close_to(mean, error):
    return pytest.approx((mean, error, 2))


def figures(rows, metric):
    return {(row.set, row.method): dataclasses.astuple(row.figures[metric].ours) for row in rows}


def test_means_and_standard_errors_by_hand(two_seeds):
    comparison = Comparison((Method("ours", two_seeds),))
    (inside,) = comparison.in_domain_rows
    assert dataclasses.astuple(inside.figures["accuracy"].ours) == close_to(0.92, 0.02)
    assert inside.images == 100
    areas = figures(comparison.ood_rows, "auc")
    assert areas["uniform", "ours"] == close_to(0.7, 0.1)
    assert areas["dtd", "ours"] == close_to(0.7, 0.2)


def test_the_error_of_a_mean_over_sets_is_that_of_the_seeds_means(two_seeds):
    """The seeds' means are 0.65 and 0.75. Sets move against each other: averaging their errors would give 0.15."""
    means = figures(Comparison((Method("ours", two_seeds),)).mean_rows, "auc")
    assert means["mean of 2 sets", "ours"] == close_to(0.7, 0.05)
    assert means["mean of 1 synthetic", "ours"] == close_to(0.7, 0.1)
    assert means["mean of 1 natural", "ours"] == close_to(0.7, 0.2)


def test_sets_of_one_kind_have_one_mean(evaluation):
    two = Comparison((Method("ours", (evaluation(areas={"far": 0.5, "near": 0.7}),)),))
    assert figures(two.mean_rows, "auc") == {("mean of 2 sets", "ours"): (pytest.approx(0.6), None, 1)}


def test_one_set_has_no_mean(evaluation):
    assert Comparison((Method("ours", (evaluation(areas={"dtd": 0.5}),)),)).mean_rows == []


def test_missing_sets_are_counted(evaluation):
    ours = Method("ours", (evaluation(missing=["blobs", "svhn", "lsun"]),))
    comparison = Comparison((ours,), published=Tables())
    names = [row.set for row in comparison.mean_rows]
    assert names == ["mean of 1 of 2 synthetic", "mean of 1 of 3 natural", "mean of 2 of 5 sets"]
    holes = [row for row in comparison.ood_rows if not row.figures]
    assert [(row.set, row.kind, row.images, row.paper_images) for row in holes] == [
        ("blobs", "missing", None, None),
        ("svhn", "missing", None, 73_257),
        ("lsun", "missing", None, None),
    ]


def test_published_figures_and_the_differences(evaluation):
    methods = Method("deep", (evaluation(),), setting=DEEP), Method("other", (evaluation(),))
    comparison = Comparison(methods, published=Tables())
    (uniform, without, *_) = comparison.ood_rows
    assert uniform.figures["auc"].paper == (0.30, 0.22)
    assert uniform.paper_images == 25_000
    assert without.figures["auc"].paper is None
    assert without.paper_images is None
    assert comparison.in_domain_rows[0].figures["brier"].paper is None
    means = {row.set: row for row in comparison.mean_rows if row.method == "deep"}
    assert means["mean of 2 sets"].figures["auc"].paper == (pytest.approx(0.39), None)
    assert means["mean of 2 sets"].figures["ap"].paper is None
    other = Method("deep", (evaluation(areas={"uniform": 0.8, "dtd": 0.6, "svhn": 0.7}),), setting=DEEP)
    means = {row.set: row for row in Comparison((other,), published=Tables()).mean_rows}
    assert means["mean of 1 synthetic"].figures["auc"].paper.mean == 0.3
    assert means["mean of 2 natural"].figures["auc"].paper is None  # svhn has no figure
    alone = Comparison(methods)
    assert all(figure.paper is None for row in alone.rows for figure in row.figures.values())


def test_other_scores_are_not_compared_with_published_ones(evaluation):
    method = Method("deep", (evaluation(score="max_probability"),), setting=DEEP)
    comparison = Comparison((method,), published=Tables())
    assert all(figure.paper is None for row in comparison.ood_rows for figure in row.figures.values())
    assert all(figure.paper is None for row in comparison.mean_rows for figure in row.figures.values())
    assert comparison.in_domain_rows[0].figures["accuracy"].paper is not None  # the score is no part of these


def test_other_images_or_scores_are_refused(evaluation):
    for other, theirs in (
        (evaluation(areas={"uniform": 0.8}), r"mnist \(100\), uniform \(50\)$"),
        (evaluation(areas={"dtd": 0.8, "uniform": 0.6}), r"dtd \(50\), uniform \(50\)$"),
        (evaluation(score="max_probability"), r"max_probability"),
        (evaluation(missing=["svhn"]), r"svhn$"),
    ):
        with pytest.raises(ValueError, match=rf"\ba was on mutual_information, .*\bb on .*{theirs}"):
            Comparison((Method("a", (evaluation(),)), Method("b", (other,))))
    with pytest.raises(ValueError, match="at least one method"):
        Comparison(())


def test_other_images_of_the_same_name_and_count_are_refused(evaluation):
    def on(inside, outside):
        found = evaluation(areas={"dtd": 0.5})
        return dataclasses.replace(
            found,
            in_domain=dataclasses.replace(found.in_domain, content=inside),
            ood=(dataclasses.replace(found.ood[0], content=outside),),
        )

    unknown = on("", "")  # as in files from before hashes were kept
    Comparison((Method("a", (on("x", "y"), unknown)), Method("b", (on("x", "y"),))))
    for name, other in (("mnist", on("z", "y")), ("dtd", on("x", "z"))):
        with pytest.raises(ValueError, match=f"same images, but those of {name} differ between a and b"):
            Comparison((Method("a", (unknown, on("x", "y"))), Method("b", (other,))))
        with pytest.raises(ValueError, match=f"same images, but those of {name} differ between a and a"):
            Comparison((Method("a", (on("x", "y"), other)),))


def test_sets_of_which_some_saw_other_images_are_left_out_of_a_comparison_on_common_sets(evaluation):
    def on(content="", images=None, **changes):
        found = evaluation(areas={"uniform": 0.8, "dtd": 0.6, "lsun": 0.1}, **changes)
        dtd = dataclasses.replace(found.ood[1], content=content, images=images or found.ood[1].images)
        return dataclasses.replace(found, ood=(found.ood[0], dtd, found.ood[2]))

    few = evaluation(areas={"lsun": 0.4, "uniform": 0.2}, missing=["dtd", "svhn"])  # in another order
    cases = {
        (): [on("x"), on("x"), on()],
        ("dtd",): [on("x"), on("y"), on()],
        ("dtd", "svhn"): [on("x"), few],
    }
    for missing, evaluations in cases.items():
        methods = [Method(str(number), (each,)) for number, each in enumerate(evaluations)]
        comparison = Comparison.on_common_sets(methods, ["a note"])
        assert comparison.notes == ("a note",)
        assert comparison.first.missing == missing
        assert comparison.left_out == missing[:1]  # no method has svhn
        for method, whole in zip(comparison.methods, evaluations, strict=True):
            kept = {result.name: result.auc for result in method.evaluations[0].ood}
            assert list(kept) == [name for name in ("uniform", "dtd", "lsun") if name not in missing]
            assert kept == {result.name: result.auc for result in whole.ood if result.name in kept}
    counts = Comparison.on_common_sets([Method("a", (on(images=7), on(images=8)))])
    assert counts.left_out == ("dtd",)
    for other in (on(score="max_probability"), evaluation(areas={"svhn": 0.5})):
        with pytest.raises(ValueError, match="same images by the same score"):
            Comparison.on_common_sets([Method("a", (on(),)), Method("b", (other,))])


def test_a_note_on_one_of_the_trainings_names_it(evaluation, information):
    runs = [
        (RunFacts("a", information(seed=0, note="partial", data="1" * 64)), evaluation()),
        (RunFacts("b", information(strength=0.1)), evaluation()),
    ]
    assert Comparison.of_runs(runs).notes[0] == "Deep Ensembles: trained on mnist: partial"


def test_runs_that_were_not_predicted_in_full_precision_are_named(evaluation, information):
    told = "predicted on a GPU with products in TF32"
    rounded = {**information(strength=0.1, seed=100), "judged_in": "tf32"}
    runs = [
        (RunFacts("a", information(seed=0)), evaluation()),
        (RunFacts("b", information(strength=0.1)), evaluation()),
        (RunFacts("c", rounded), evaluation()),
    ]
    (note,) = (note for note in Comparison.of_runs(runs).notes if told in note)
    assert note.startswith("greedy")
    assert not any(told in note for note in Comparison.of_runs(runs[:2]).notes)


def test_departures_from_the_published_training_are_noted_where_its_figures_are_shown(evaluation, information):
    short = {"recipe": {"epochs": 1}}
    shown = Comparison.of_runs([(RunFacts("a", information(**short)), evaluation())], Tables())
    assert shown.notes == ("epochs 1 instead of 20",)
    without = Comparison.of_runs([(RunFacts("a", information(size=4, **short)), evaluation())], Tables())
    assert without.notes == ()
    assert Comparison.of_runs([(RunFacts("a", information(**short)), evaluation())]).notes == ()


def test_one_member_is_noted(evaluation, information):
    alone = dataclasses.replace(evaluation(), members=1)
    (note,) = Comparison.of_runs([(RunFacts("a", information(size=1)), alone)]).notes
    assert note.startswith("mutual information of one member is 0")
    other = dataclasses.replace(alone, score="max_probability")
    assert Comparison.of_runs([(RunFacts("a", information(size=1)), other)]).notes == ()


def test_members_that_have_learnt_nothing_are_not_hidden_by_the_others(evaluation, information):
    def of(*accuracies):
        inside = dataclasses.replace(evaluation().in_domain, member_accuracies=accuracies)
        return dataclasses.replace(evaluation(), in_domain=inside)

    lowest = {0: 0.1, 100: 0.5}
    greedy = [(RunFacts("a", information(strength=0.1, seed=seed)), of(0.9, low)) for seed, low in lowest.items()]
    (note,) = Comparison.of_runs([*greedy, (RunFacts("b", information()), evaluation())]).notes[-1:]
    method, alone = note.split(": ")
    assert method == "greedy, lambda_M = 0.1"
    assert alone.startswith("members alone ")
    assert alone.endswith(" 10.00% to 90.00%")


def test_runs_become_methods(evaluation, information):
    runs = [
        (RunFacts("greedy", information(seed=0, strength=0.1, note="partial")), evaluation(accuracy=0.8)),
        (RunFacts("deep-5", information(seed=5, note="partial")), evaluation(accuracy=0.7)),
        (RunFacts("deep-0", information(seed=0, note="partial")), evaluation(accuracy=0.9)),
    ]
    comparison = Comparison.of_runs(runs, Tables())
    deep, greedy = comparison.methods
    assert (deep.label, deep.seeds, deep.sources) == ("Deep Ensembles", (0, 5), ("deep-0", "deep-5"))
    assert [evaluated.in_domain.accuracy for evaluated in deep.evaluations] == [0.9, 0.7]
    assert (greedy.label, greedy.seeds) == ("greedy, lambda_M = 0.1", (0,))
    assert deep.architecture == "PreResNet8"
    assert greedy.setting == Setting("PreResNet8", "mnist", 5, "greedy", 0.1)
    assert comparison.notes == ("trained on mnist: partial", "epochs 20 instead of 20")


def test_an_infinite_likelihood_is_shown_as_such(evaluation):
    comparison = Comparison((Method("x", (evaluation(nll=math.inf), evaluation(nll=1.0))),))
    assert comparison.in_domain_rows[0].figures["nll"].ours == Estimate(math.inf, None, 2)

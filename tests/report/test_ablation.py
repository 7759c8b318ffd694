from itertools import pairwise

import numpy as np
import pytest

from greedy_ensembles.benchmark import Estimate
from greedy_ensembles.report.ablation import Trial, draw_ablation
from greedy_ensembles.report.figure import write_figure

STRENGTHS = [0.1, 0.5, 0.8, 1.0, 1.5, 3.0, 10.0]


def trial(strength, seeds=5):
    shift, error = 0.001 * (strength or 0), (lambda value: value if seeds > 1 else None)
    return Trial(
        strength,
        Estimate(0.8 - shift, error(0.002), seeds),
        Estimate(0.7 + shift, error(0.003), seeds),
        Estimate(0.01 + shift, error(0.004), seeds),
    )


def all_trials(seeds=5):
    return [trial(strength, seeds) for strength in [3.0, None, *(s for s in STRENGTHS if s != 3.0)]]


def points(axis):
    return axis.containers[0][0].get_data()


def named_ticks(axis):
    axis.figure.canvas.draw()
    return {tick.get_text(): x for tick, x in zip(axis.get_xticklabels(), axis.get_xticks(), strict=True)}


def test_points_are_in_order_and_in_their_units():
    figure = draw_ablation(all_trials(), "CIFAR-10", 10_000)
    shifts = 0.001 * np.array(STRENGTHS)
    expected = {"accuracy (%)": 100 * (0.8 - shifts), "NLL (nats)": 0.7 + shifts, "ACE (%)": 100 * (0.01 + shifts)}
    assert [axis.get_ylabel() for axis in figure.axes] == list(expected)
    for axis, values in zip(figure.axes, expected.values(), strict=True):
        x, y = points(axis)
        assert x.tolist() == STRENGTHS
        assert y == pytest.approx(values)
        assert axis.get_xlabel() == r"$\lambda_M$"


def test_bars_and_band_are_one_standard_error():
    for axis, (mean, error) in zip(
        draw_ablation(all_trials(), "CIFAR-10", 10_000).axes, [(80, 0.2), (0.7, 0.003), (1, 0.4)], strict=True
    ):
        bar = axis.containers[0][2][0].get_segments()[0]
        assert bar[1, 1] - bar[0, 1] == pytest.approx(2 * error)
        (band,) = axis.patches
        assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((mean - error, mean + error))
        (level,) = (line for line in axis.lines if line.get_label() == "Deep Ensembles")
        assert level.get_ydata() == pytest.approx([mean, mean])


def test_differences_in_the_last_digit_do_not_fill_the_axis():
    """Nor are large ones cut off."""
    near = {strength: Estimate(0.9 + 1e-5 * number, None, 1) for number, strength in enumerate((None, 1.0, 3.0))}
    level = [Trial(strength, value, value, value) for strength, value in near.items()]
    figure = draw_ablation(level, "CIFAR-10", 10_000, others={"AUC": near})
    spans = [np.ptp(axis.get_ylim()) for axis in figure.axes]
    assert spans == pytest.approx([0.5, 0.01, 0.1, 0.02])
    for axis in draw_ablation(all_trials(), "CIFAR-10", 10_000).axes:
        low, high = axis.get_ylim()
        assert low <= points(axis)[1].min()
        assert points(axis)[1].max() <= high


def test_axes_do_not_go_where_there_can_be_no_figures():
    best = {strength: Estimate(1 - 1e-5 * number, None, 1) for number, strength in enumerate((None, 1.0, 3.0))}
    none = {strength: Estimate(1e-5 * number, None, 1) for number, strength in enumerate((None, 1.0, 3.0))}
    trials = [Trial(strength, best[strength], none[strength], none[strength]) for strength in best]
    accuracy, nll, ace, auc = draw_ablation(trials, "MNIST", 10_000, others={"AUC": best}).axes
    for axis, (low, high) in ((accuracy, (99.5, 100)), (nll, (0, 0.01)), (ace, (0, 0.1)), (auc, (0.98, 1))):
        margin = 0.01 * (high - low)  # which points at the end need
        assert axis.get_ylim() == pytest.approx((low, high), abs=margin)


def test_the_chosen_strength_is_marked_and_named():
    figure = draw_ablation(all_trials(), "CIFAR-10", 10_000, chosen=0.8)
    for axis in figure.axes:
        (mark,) = (line for line in axis.lines if "chosen" in line.get_label())
        x, y = points(axis)
        assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (0.8, y[x.tolist().index(0.8)])
    assert "0.8" in named_ticks(figure.axes[0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "greedy",
        "Deep Ensembles",
        r"chosen: $\lambda_M$ = 0.8",
    ]


def test_strengths_are_spaced_by_ratio_and_labels_do_not_meet():
    figure = draw_ablation(all_trials(), "CIFAR-10", 10_000, chosen=1.0)
    for axis in figure.axes:
        assert axis.get_xscale() == "log"
        ticks = named_ticks(axis)
        assert {"0.1", "1", "10"} <= set(ticks)
        assert set(ticks.values()) | set(axis.get_xticks(minor=True)) == set(STRENGTHS)
        boxes = [label.get_window_extent() for label in axis.get_xticklabels()]
        assert not any(one.overlaps(other) for one, other in pairwise(boxes))


@pytest.mark.parametrize("strengths", [[0.0, 0.1, 1.0, 10.0], [0.0], [0.0, 5.0]])
def test_zero_has_a_place(strengths):
    figure = draw_ablation([trial(strength) for strength in strengths], "CIFAR-10", 10_000)
    axis = figure.axes[0]
    assert axis.get_xscale() == "symlog"
    assert list(named_ticks(axis).values()) == strengths
    places = axis.transData.transform([(strength, 80) for strength in strengths])[:, 0]
    assert (np.diff(places) > 20).all()
    assert np.isfinite(places).all()


def test_one_seed_has_no_bars_and_no_words_on_them():
    caption = draw_ablation(all_trials(seeds=1), "CIFAR-10", 10_000).get_supxlabel()
    assert caption == "CIFAR-10 (10,000 images), 1 seed."
    caption = draw_ablation(all_trials(), "CIFAR-10", 10_000).get_supxlabel()
    assert caption == "CIFAR-10 (10,000 images), mean of 5 seeds; bars and band: one standard error either side."


def test_other_figures_stand_below():
    areas = {strength: Estimate(0.9 if strength is None else strength / 20, 0.01, 5) for strength in [None, *STRENGTHS]}
    figure = draw_ablation(all_trials(), "CIFAR-10", 10_000, others={"AUC, natural": areas, "AUC, synthetic": areas})
    assert [axis.get_ylabel() for axis in figure.axes[3:]] == ["AUC, natural", "AUC, synthetic"]
    for axis in figure.axes[3:]:
        x, y = points(axis)
        assert (x.tolist(), y) == (STRENGTHS, pytest.approx(np.array(STRENGTHS) / 20))
        (level,) = (line for line in axis.lines if line.get_label() == "Deep Ensembles")
        assert level.get_ydata() == pytest.approx([0.9, 0.9])
    figure.canvas.draw()
    tops = [axis.get_position().y1 for axis in figure.axes]
    assert max(tops[3:]) < min(axis.get_position().y0 for axis in figure.axes[:3])


def test_without_deep_ensembles(tmp_path):
    figure = draw_ablation([trial(1.0)], "CIFAR-10", 10_000, chosen=1)
    assert not figure.axes[0].patches
    write_figure(figure, tmp_path / "ablation.png")
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_no_ablation():
    for none in ([], [trial(None)]):
        with pytest.raises(ValueError, match="trials must hold at least one with a strength"):
            draw_ablation(none, "a", 1)
    for twice in ([trial(None), trial(None), trial(1.0)], [trial(1.0), trial(1.0)]):
        with pytest.raises(ValueError, match="trials must have each strength once"):
            draw_ablation(twice, "a", 1)
    with pytest.raises(ValueError, match=r"chosen must be one of the strengths tried, \[1.0\], got 2"):
        draw_ablation([trial(1.0)], "a", 1, chosen=2)
    good = Estimate(0.5, None, 1)
    with pytest.raises(ValueError, match=r"accuracy must be a share from 0 to 1, not per cent; got 95\.4"):
        Trial(1.0, Estimate(95.4, None, 1), good, good)
    with pytest.raises(ValueError, match="strength must be finite and at least 0, got nan"):
        Trial(float("nan"), good, good, good)

import pytest

from greedy_ensembles.benchmark.evaluation import Estimate
from greedy_ensembles.report.severity import draw_severities


def figures(start, error=0.01, seeds=3):
    return {
        name: [Estimate(start - 0.1 * severity, error, seeds) for severity in range(5)] for name in ("accuracy", "nll")
    }


def test_every_method_is_a_line_over_severities_with_its_bars():
    figure = draw_severities({"Deep Ensembles": figures(0.9), "greedy": figures(0.8)}, "Means over 2 corruptions")
    accuracy, nll = figure.axes
    for axis, factor in ((accuracy, 100), (nll, 1)):
        for container, start in zip(axis.containers, (0.9, 0.8), strict=True):
            line, _, (bars,) = container
            assert line.get_xdata().tolist() == [1, 2, 3, 4, 5]
            assert line.get_ydata() == pytest.approx([factor * (start - 0.1 * severity) for severity in range(5)])
            low, high = bars.get_segments()[0][:, 1]
            assert high - low == pytest.approx(2 * factor * 0.01)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Deep Ensembles", "greedy"]
    caption = figure.get_supxlabel()
    assert "Means over 2 corruptions, mean of 3 seeds; bars: one standard error" in caption.replace("\n", " ")


def test_one_seed_has_no_bars_and_the_caption_promises_none():
    figure = draw_severities({"greedy": figures(0.8, None, 1)}, "All")
    assert "bars" not in figure.get_supxlabel()
    assert "1 seed" in figure.get_supxlabel()


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="at least one method"):
        draw_severities({}, "nothing")

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedy_ensembles.report.page.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Frame,
    Radar,
    line_chart,
    nice,
    radar,
)

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


def corners(path):
    return [tuple(map(float, pair)) for pair in re.findall(r"(-?[\d.]+(?:e[+-]\d+)?) (-?[\d.]+(?:e[+-]\d+)?)", path)]


def test_corners_of_the_data_are_corners_of_the_axes():
    frame = Frame((-2.0, 2.0), (10.0, 20.0))
    places = corners(frame.line(np.array([-2.0, 2.0, 0.0]), np.array([10.0, 20.0, 15.0])))
    assert places[0] == (LEFT, HEIGHT - BOTTOM)  # low values are at the bottom, which has the larger coordinate
    assert places[1] == (WIDTH - RIGHT, TOP)
    assert places[2] == ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2)


@given(NUMBERS, NUMBERS)
def test_ticks_lie_within_the_range_and_are_round(one, other):
    low, high = sorted((one, other))
    if high - low < 1e-6 * max(abs(low), abs(high), 1e-3):
        return  # ranges of a chart are wider
    ticks = nice(low, high)
    assert 2 <= len(ticks) <= 6
    room = 1e-8 * max(abs(low), abs(high))
    assert all(low - room <= tick <= high + room for tick in ticks)
    steps = np.diff(ticks)
    assert steps == pytest.approx(steps[0], rel=1e-3)
    digit = steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-9)
    assert min(abs(digit - each) for each in (1, 2, 5, 10)) < 1e-2


@given(st.lists(NUMBERS, min_size=1, max_size=30))
def test_every_point_of_a_line_chart_is_within_its_axes(values):
    x = np.arange(1.0, len(values) + 1)
    chart = line_chart("t", "alt", "epoch", "loss", {"a": (x, np.array(values)), "b": (x, np.zeros(len(x)))})
    for series in chart.series:
        for across, up in corners(series.path):
            assert LEFT - 0.2 <= across <= WIDTH - RIGHT + 0.2
            assert TOP - 0.2 <= up <= HEIGHT - BOTTOM + 0.2
    assert {series.kind for series in chart.series} == ({"points"} if len(values) == 1 else {"line"})


def test_epochs_are_whole_numbers():
    x = np.array([1.0, 2.0, 3.0])
    chart = line_chart("t", "alt", "epoch", "loss", {"a": (x, x)})
    assert [text for _, text in chart.x_ticks] == ["1", "2", "3"]


def test_a_radar_has_one_at_the_rim_and_sets_clockwise_from_the_top():
    drawn = radar("alt", ["north", "east", "south", "west"], {"best": [1.0] * 4, "chance": [0.5, 0.5, 0.5, 0.5]})
    x, y = Radar.centre
    assert drawn.spokes[0].end == (x, y - 105)
    assert drawn.spokes[1].end == (x + 105, y)
    assert [spoke.anchor for spoke in drawn.spokes] == ["middle", "start", "middle", "end"]
    assert corners(drawn.series[0].path) == [spoke.end for spoke in drawn.spokes]
    assert corners(drawn.series[1].path) == [(x, y)] * 4
    assert (105.0, "1") in drawn.rings


def test_a_radar_has_room_for_what_is_worse_than_chance():
    drawn = radar("alt", ["a", "b", "c"], {"bad": [0.23, 0.5, 1.0]})
    x, y = Radar.centre
    assert corners(drawn.series[0].path)[0] == (x, pytest.approx(y - 105 * 0.03 / 0.8, abs=0.06))

"""Pictures as PNG files, and charts as SVG that a page with a policy and two themes can hold."""

import gc
import re
import weakref
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib._pylab_helpers import Gcf

from greedy_ensembles.report.figure import COLOURS, GREY, draw_chart, entitle, method_styles, new_figure, write_figure


def small():
    figure = new_figure(height=2, width=3)
    figure.subplots().plot([0, 1], [1, 0])
    entitle(figure, "title")
    return figure


def test_the_same_figure_is_the_same_bytes_and_folders_are_made(tmp_path):
    for name in "ab":
        write_figure(small(), tmp_path / "new" / f"{name}.png")
    first, second = ((tmp_path / "new" / f"{name}.png").read_bytes() for name in "ab")
    assert first == second
    assert first.startswith(b"\x89PNG")


def test_no_figure_stays_behind(tmp_path):
    figure = small()
    write_figure(figure, tmp_path / "picture.png")
    gone = weakref.ref(figure)
    del figure
    gc.collect()
    assert gone() is None
    assert not Gcf.get_all_fig_managers()


def test_styles_differ():
    assert len(set(method_styles(60))) == 60
    first = method_styles(4)
    for part in ("colour", "linestyle", "marker"):  # in grey, dashes and markers must do
        assert len({getattr(style, part) for style in first}) == 4
    assert method_styles(2) == first[:2]


HOSTILE = "\"><script>alert('x')</script> $x^2 & \x01\x00"
CLEAN = HOSTILE[:-2]


def draw_two(axis):
    x = np.linspace(0, 2, 50)
    axis.plot(x, np.sin(9 * x), color=COLOURS[0], gid="member 1")
    axis.plot(x, np.cos(9 * x), color=COLOURS[1], marker="o", dashes=(5, 2), gid=HOSTILE)
    axis.fill_between(x, 0, 1, color=GREY, alpha=0.3)
    axis.text(1, 0.5, HOSTILE)


@pytest.fixture
def chart():
    return draw_chart("Title", f"What is seen. {HOSTILE}", draw_two, x_label="across", y_label="up")


def elements(chart, number=0):
    return list(ElementTree.fromstring(chart.markup(number)).iter())


def test_colours_are_the_pages_and_nothing_is_styled_in_place(chart):
    colours = {element.get(key) for element in elements(chart) for key in ("fill", "stroke")}
    assert {"var(--c0)", "var(--c1)", "var(--faint)", "var(--rule)", "var(--ink)"} <= colours
    assert not any(str(colour).startswith("#") for colour in colours)
    assert not any("style" in element.attrib or element.tag == "style" for element in elements(chart))


def test_lines_know_their_series(chart):
    series = {element.get("data-series"): element for element in elements(chart) if element.get("data-series")}
    assert list(series) == ["member 1", CLEAN]
    assert series["member 1"].find("title").text == "member 1"
    path = series["member 1"].find("path").get("d")
    assert path.count("L") > 20


def test_text_stays_text_whatever_it_is(chart):
    texts = [element.text for element in elements(chart) if element.tag == "text"]
    assert {"across", "up", CLEAN} <= set(texts)
    assert "<script" not in chart.markup(0)
    root = elements(chart)[0]
    assert root.get("aria-label") == f"What is seen. {CLEAN}"
    assert root.get("role") == "img"


def test_names_within_are_used_and_belong_to_one_chart(chart):
    names = {element.get("id") for element in elements(chart, 3) if element.get("id")}
    assert names
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', chart.markup(3)))
    assert names == used
    assert names.isdisjoint(element.get("id") for element in elements(chart, 4))


def test_the_same_chart_is_the_same_text(chart):
    again = draw_chart("Title", f"What is seen. {HOSTILE}", draw_two, x_label="across", y_label="up")
    assert again == chart
    assert not re.search(r"20\d\d-\d\d|matplotlib|https?:", chart.svg)


def test_pictures_are_within():
    def draw(axis):
        axis.imshow(np.eye(4), interpolation="none")

    (image,) = (element for element in elements(draw_chart("t", "a", draw)) if element.tag == "image")
    assert image.get("href").startswith("data:image/png;base64,")


def test_a_curve_of_many_points_is_small():
    scores = np.sort(np.random.default_rng(0).random(200_000))
    chart = draw_chart("t", "a", lambda axis: axis.plot(scores, scores**2, gid="x"))
    assert len(chart.svg) < 50_000

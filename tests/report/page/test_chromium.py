"""The page in a real browser, in both themes and on a phone: no complaints, what moves moves, all text is readable."""

from functools import partial

import numpy as np
import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.report.figure import draw_chart, method_styles
from greedy_ensembles.report.page import Evaluated, OodView, Part, Picture, TrainedRun, write_page
from greedy_ensembles.report.table import Column, Entry, Table

#: Of every element with text of its own that is to be seen: the text and the ratio of contrast, by the rule of WCAG.
CONTRAST = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const bytes = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (colour) => {
    const [r, g, b] = bytes(colour).slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (bytes(colour)[3] === 255) return colour;
    }
    return "white";
  };
  const found = [];
  for (const e of document.body.querySelectorAll("*")) {
    const own = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join("");
    if (!own || !e.checkVisibility() || ["SCRIPT", "OPTION", "title"].includes(e.tagName)) continue;
    const style = getComputedStyle(e);
    const [one, other] = [luminance(e.closest("svg") ? style.fill : style.color), luminance(behind(e))];
    found.push([own.slice(0, 40), (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)]);
  }
  return found;
})()
"""


BLACK = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="


def curves(title, names, height=0.0):
    def draw(axis):
        for number, (name, style) in enumerate(zip(names, method_styles(len(names)), strict=True)):
            axis.plot([1, 2, 20], [1 + number, 0.5 * number, number + height], color=style.colour, gid=name)

    return draw_chart(title, "Falling lines.", draw, x_label="epoch", y_label="loss")


def plane(axis):
    image = axis.imshow(np.arange(16.0).reshape(4, 4), interpolation="none")
    axis.figure.colorbar(image, ax=axis, label="nats")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with everything on it."""
    members = [f"member {number}" for number in range(1, 8)]
    rates = curves("ROC", ["a", "b"])
    rows = [("uniform", 0.9, 3.0), ("a10", 1.0, 1.0), ("a9", 0.25, 20.0)]
    cells = [{"set": Entry(name), "AUC": Entry(auc, text=f"{auc:.2f}"), "images": Entry(n)} for name, auc, n in rows]
    table = Table("Figures", [Column(key) for key in cells[0]], [*cells, {"set": Entry("gone")}])
    maps = [(draw_chart(title, "A map.", plane), f"{title}: 0.1") for title in ("deep", "1")]
    picture = Picture(f"data:image/png;base64,{BLACK}", "A black square.", ["0.10", "0.20"])
    gallery = {"Most certain": [picture] * 12}
    views = [OodView(name, "Noise.", [rates, rates], gallery) for name in ("uniform", "gaussian")]
    evaluated = Evaluated([table, table], ["(a) a note"], ["a", "b"], views, {**gallery, "Least certain": [picture]})
    loss = curves("Loss", members, 0.5)
    run = TrainedRun("greedy, seed 0 (runs/greedy)", "Selected epochs: 1.", [loss], members, '{"seed": 0}')
    part = Part("mnist", "part-1", table, table, [run], ["Not finished."], evaluated, maps)
    file = tmp_path_factory.mktemp("page") / "page.html"
    write_page([part], file)
    return file


@pytest.fixture
def opened(browser, page):
    browser.open(page)
    return browser


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_no_complaints_no_requests_and_nothing_wider_than_the_window(browser, page, dark, width):
    browser.open(page, width=width, dark=dark)
    assert browser.complaints == []
    assert browser.requests == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("[...document.images].every((image) => image.naturalWidth > 0)")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_that_the_command_wrote(browser, invoke, tmp_path, dark):
    """Two runs on points of a plane: curves, and a map with a slider over lambda_M."""
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    for strength in (1.0, 10.0):
        options = {"strength": strength, "recipe": ge.Recipe(epochs=2), "device": "cpu", "progress": False}
        make_model = partial(ge.models.MLP, 2, hidden=(8,))
        ge.fit(make_model, (x, (x[:, 0] > 0).long()), size=2, run_dir=tmp_path / f"{strength}", **options)
    runs = [tmp_path / name for name in ("1.0", "10.0")]
    done = invoke("report", *runs, "--out", tmp_path / "page.html", "--device", "cpu")
    assert done.exit_code == 0, done.output
    browser.open(tmp_path / "page.html", width=400, dark=dark)
    assert browser.complaints == browser.requests == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert [(text, round(ratio, 2)) for text, ratio in browser.run(CONTRAST) if ratio < 4.5] == []
    assert browser.run("document.querySelectorAll('input[type=range]').length") == 1


def test_the_pages_policy_stops_what_is_not_its_own_and_complaints_are_heard(browser, page):
    browser.open(page)
    slipped_in = "Object.assign(document.createElement('script'), { textContent: 'window.stolen = 1' })"
    browser.run(f"document.body.append({slipped_in})")
    assert browser.run("window.stolen") is None
    assert browser.run("fetch('https://example.invalid').then(() => 'sent', () => 'refused')") == "refused"
    refused = [complaint for complaint in browser.complaints if "Content Security Policy" in str(complaint)]
    assert len(refused) >= 2


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_all_text_is_readable(browser, page, dark, width):
    browser.open(page, width=width, dark=dark)
    found = browser.run(CONTRAST)
    assert len(found) > 60
    assert [(text, round(ratio, 2)) for text, ratio in found if ratio < 4.5] == []
    smallest = browser.run(
        "Math.min(...[...document.querySelectorAll('svg text')].filter((t) => t.checkVisibility())"
        ".map((t) => parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a || Infinity))"
    )
    assert smallest >= 8.5  # pixels, after the chart is fitted into its place


def test_on_a_phone_the_name_of_a_row_leaves_room_for_its_figures(browser, page):
    browser.open(page, width=400)
    browser.run("document.querySelector('td').textContent = 'a method with a rather long name, lambda_M = 0.1, M = 11'")
    assert browser.run("document.querySelector('td').offsetWidth") < 200


def test_the_measure_of_contrast_finds_what_cannot_be_read(opened):
    opened.run("document.querySelector('h1').style.setProperty('color', '#bbb')")
    assert [text for text, ratio in opened.run(CONTRAST) if ratio < 4.5] == ["mnist"]


def column(browser, number):
    return browser.run(
        f"[...document.querySelectorAll('table')[1].tBodies[0].rows].map(r => r.cells[{number}].innerText)"
    )


def click(browser, heading):
    browser.run(f"document.querySelectorAll('table')[1].querySelectorAll('th button')[{heading}].click()")


def test_tables_sort_by_number_by_name_and_back_with_what_is_missing_last(opened):
    click(opened, 2)
    assert column(opened, 2) == ["1", "3", "20", ""]  # as text, 20 would come before 3
    click(opened, 2)
    assert column(opened, 2) == ["20", "3", "1", ""]
    assert opened.run("document.querySelectorAll('table')[1].querySelector('[aria-sort]').ariaSort") == "descending"
    click(opened, 0)
    assert column(opened, 0) == ["a9", "a10", "gone", "uniform"]
    click(opened, 1)
    assert column(opened, 1) == ["0.25", "0.90", "1.00", ""]


def test_the_slider_moves_the_map(opened):
    shown = "[...document.querySelectorAll('.slide')].map((slide) => slide.checkVisibility())"
    assert opened.run(shown) == [False, True]
    assert opened.run("document.querySelector('.slider output').value") == "1"
    opened.run("document.querySelector('.slider input').focus()")
    for kind in ("keyDown", "keyUp"):
        opened.call("Input.dispatchKeyEvent", type=kind, key="ArrowLeft", code="ArrowLeft", windowsVirtualKeyCode=37)
    assert opened.run(shown) == [True, False]
    assert opened.run("document.querySelector('.slider output').value") == "deep"


def test_one_ood_set_is_shown_at_a_time(opened):
    shown = "[...document.querySelectorAll('.view')].map((view) => view.checkVisibility())"
    assert opened.run(shown) == [True, False]
    opened.run(
        "(s => { s.selectedIndex = 1; s.dispatchEvent(new Event('change')); })(document.querySelector('select'))"
    )
    assert opened.run(shown) == [False, True]


@pytest.mark.parametrize("width", [400, 1200])
def test_galleries_are_shown_as_large_as_they_are_meant_and_wrap_on_a_phone(browser, page, width):
    browser.open(page, width=width)
    assert browser.run("document.querySelector('h4').innerText") == "Most certain"
    images = "[...document.querySelector('.pictures').querySelectorAll('img')]"
    assert browser.run(f"{images}.map((i) => [i.offsetWidth, i.offsetHeight])") == [[64, 64]] * 12
    rows = browser.run(f"new Set({images}.map((i) => i.getBoundingClientRect().top)).size")
    assert rows == (3 if width == 400 else 1)
    assert browser.run(f"Math.max(...{images}.map((i) => i.getBoundingClientRect().right)) <= innerWidth")


def test_a_line_is_switched_off_and_on(opened):
    key = "document.querySelector('details .key')"
    line = "document.querySelector('details [data-series=\"member 1\"]')"
    opened.run(f"{key}.click()")
    assert opened.run(f"getComputedStyle({line}).display") == "none"
    assert opened.run(f"{key}.getAttribute('aria-pressed')") == "false"
    opened.run(f"{key}.click()")
    assert opened.run(f"getComputedStyle({line}).display") != "none"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_theme_follows_the_reader_and_can_be_changed(browser, page, dark):
    browser.open(page, dark=dark)
    background = "getComputedStyle(document.body).backgroundColor"
    before = browser.run(background)
    assert (before == "rgb(21, 23, 26)") is dark
    assert browser.run("document.getElementById('theme').innerText") == ("Light" if dark else "Dark")
    browser.run("document.getElementById('theme').click()")
    after = browser.run(background)
    assert (after == "rgb(21, 23, 26)") is not dark
    browser.theme(not dark)  # the reader's choice here outlasts that of the system
    assert browser.run(background) == after


def test_without_its_script_the_page_is_whole(browser, page):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.run("[...document.querySelectorAll('.slide, .view')].every((e) => e.checkVisibility())")
    assert not browser.run("document.querySelector('.slider, .chooser, #theme').checkVisibility()")

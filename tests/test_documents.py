"""Every Python block of the documents runs, top to bottom, and every example does."""

import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import greedy_ensembles as ge

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(autouse=True)
def _the_same_data():
    """Documents draw theirs without a seed, and with about one draw in a hundred their training diverges."""
    torch.manual_seed(0)


def blocks(document):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), flags=re.M | re.S)


def test_the_readme_prints_what_it_shows(capsys):
    (block,) = blocks("README.md")
    exec(compile(block, "README.md", "exec"), {})
    (shown,) = re.findall(r"^```text\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    assert capsys.readouterr().out == shown


READINGS = sorted((ROOT / "results").rglob("*reading.md"))


@pytest.mark.parametrize("reading", READINGS, ids=lambda path: path.parents[1].name)
def test_what_a_person_wrote_stands_first_on_the_page(reading):
    assert reading.parent.name == "records"  # out of the reader's way
    pages = [path.read_text() for path in reading.parents[1].glob("*.md")]
    written = reading.read_text()
    title, _, rest = written.partition("\n") if written.startswith("# ") else ("# ", "", written)
    answer = rest.partition("\n## ")[0].strip()
    assert any(page.startswith(title) and page.partition("\n\n")[2].startswith(answer) for page in pages)
    assert len(answer.splitlines()) <= 5


def test_pages_of_results_have_titles_of_their_own():
    pages = [path for path in (ROOT / "results").rglob("*.md") if not path.name.endswith("reading.md")]
    titles = [path.read_text().partition("\n")[0] for path in pages]
    assert len(set(titles)) == len(titles) > 15


def test_the_page_on_theory_runs_and_says_the_truth():
    names = {}
    for block in blocks("docs/theory.md"):
        exec(compile(block, "docs/theory.md", "exec"), names)
    assert names["chosen"] == [2, 7, 3]
    assert names["F"].divergence(names["chosen"]) == pytest.approx(0.0172, abs=5e-5)
    page = (ROOT / "docs/theory.md").read_text()
    for name, found in names["correlations"].items():
        assert "| {} | {:+.2f} | {:+.2f} |".format(name, *found) in page


def test_the_page_on_metrics_runs_and_says_the_truth():
    names = {}
    for block in blocks("docs/metrics.md"):
        exec(compile(block, "docs/metrics.md", "exec"), names)
    figures = [names[name] for name in ("auc", "precision", "false_alarms", "threshold", "calibration")]
    assert figures == pytest.approx([0.731, 0.362, 0.760, 0.344, 0.051], abs=5e-4)


def test_the_page_on_evaluation_runs_and_says_the_truth(capsys):
    names = {}
    for block in blocks("docs/evaluation.md"):
        exec(compile(block, "docs/evaluation.md", "exec"), names)
    result = names["result"]
    assert result.in_domain.accuracy > 0.9
    assert min(each.auc for each in result.ood) > 0.6  # a first example should not tell noise worse than a coin does
    assert [(each.name, each.kind, each.images) for each in result.ood] == [
        ("uniform", "synthetic", 100),
        ("bernoulli", "synthetic", 100),
    ]
    frame = names["table"].to_frame().set_index(["set", "method"])
    assert frame.loc[("mean of 2 sets", "three members"), "auc"] == pytest.approx(result.mean("auc"))
    assert frame.loc[("uniform", "brightness"), "score"] == "distance"
    assert "uniform" in capsys.readouterr().out


def test_the_page_on_evaluation_names_the_presets():
    rows = (row.strip("| ").split(" | ") for row in (ROOT / "docs/evaluation.md").read_text().splitlines())
    found = {cells[0].strip("`"): cells[1:] for cells in rows if len(cells) == 3 and cells[0].startswith("`")}
    assert {name: tuple(", ".join(kinds).split(", ")) for name, kinds in found.items()} == ge.benchmark.PRESETS


def test_the_page_on_reproduction_lists_the_studies_with_their_runs_and_costs():
    from greedy_ensembles.paper.catalogue import STUDIES
    from greedy_ensembles.paper.cost import Device, makespan, price, spelled
    from greedy_ensembles.paper.study import Protocol, jobs

    rows = (row.strip("| ").split(" | ") for row in (ROOT / "docs/reproduce.md").read_text().splitlines())
    found = {cells[0].strip("`"): cells[2:] for cells in rows if len(cells) == 5 and cells[0].startswith("`")}
    expected = {}
    for name, study in STUDIES.items():
        if study.sections:
            all_jobs = [jobs(study, protocol) for protocol in (Protocol(), Protocol("concurrent", "bf16"))]
            prices = [makespan({job: price(job, Device("cuda", "H200")) for job in each}) for each in all_jobs]
            expected[name] = [str(len(all_jobs[0])), *map(spelled, prices)]
    assert found == expected


def test_the_page_on_machines_says_what_all_studies_take():
    from greedy_ensembles.paper.catalogue import STUDIES
    from greedy_ensembles.paper.cost import H200, makespan, price, spelled
    from greedy_ensembles.paper.study import Protocol, filter_study, jobs

    every = {}
    for study in STUDIES.values():
        wanted = jobs(study, Protocol()) if study.sections else []
        if study.grid:
            wanted += jobs(filter_study(study, strengths=study.grid), Protocol())
        every |= {job: price(job, H200) for job in wanted}
    whole = f"All of these together, {len({job.run for job in every})} runs with all lambda_M that the paper tried: "
    whole += f"{spelled(makespan(every))} of one device"
    page = (ROOT / "docs/scale.md").read_text()
    for end in (".", *(f", {spelled(makespan(every, gpus))} on {gpus}." for gpus in (8, 64))):
        assert f"\n{whole}{end}\n" in page


def test_the_page_on_formats_runs_and_says_the_truth(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    *inside, on_onnx = blocks("docs/format.md")
    for block in inside:
        exec(compile(block, "docs/format.md", "exec"), names)
    assert len(names["again"]) == 2
    assert names["outputs"]["epistemic"].shape == (17,)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    weights = {f"saved/members/{number}/weights.safetensors" for number in ("01", "02")}
    assert files == {"ensemble.pt2", "saved/README.md", "saved/ensemble.json", *weights}
    for extra in ("onnxscript", "onnxruntime"):
        pytest.importorskip(extra, reason="ONNX is an extra: greedy-ensembles[onnx]")
    exec(compile(on_onnx, "docs/format.md", "exec"), names)
    assert names["probabilities"].shape == (17, 2)
    assert names["epistemic"].shape == (17,)


def test_the_page_on_gotchas_runs_and_says_the_truth():
    names = {}
    for block in blocks("docs/gotchas.md"):
        exec(compile(block, "docs/gotchas.md", "exec"), names)
    first, *rest = names["model"]
    hidden = first(torch.cat([names["examples"], names["samples"]]))
    of_examples = hidden[:32].mean(0), hidden[:32].var(0, correction=0)
    expected = torch.relu((hidden - of_examples[0]) / (of_examples[1] + 1e-5).sqrt())
    torch.testing.assert_close(torch.cat([names["logits"], names["others"]]), rest[-1](expected))


def test_the_page_on_using_a_run_is_right_about_decisions():
    names = {}
    for block in blocks("docs/report.md"):
        exec(compile(block, "docs/report.md", "exec"), names)
    assert names["strange"].shape == (2,)
    assert names["classes"].shape == names["probs"].shape == (600, 3)


def test_the_example_of_a_new_method_runs():
    names = {}
    for block in blocks("CONTRIBUTING.md"):
        exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    assert len(names["ensemble"]) == 3
    method, (live, bank) = names["Nearest"](), torch.eye(2).expand(5, 2, 2).clone().split([3, 2])
    assert method.terms(live, bank).tolist() == [0, 0, 0]  # the nearest is where they are
    bank[1] = live[0].flip(1)
    assert method.terms(live[:1], bank[1:]).tolist() == [-2]  # lambda_M = M = 1, and opposite corners


def test_the_page_on_changes_runs_and_says_the_truth():
    names = {}
    for block in blocks("docs/changes-0.2.md"):
        exec(compile(block, "docs/changes-0.2.md", "exec"), names)
    run = names["run"]
    assert (run.method, run.strength) == ("greedy", 3.0)
    assert run.configuration["method"].keys() == {"class", "label", "sees", "strength"}


@pytest.mark.filterwarnings("ignore::greedy_ensembles.runs.notes.WeakMemberWarning")
def test_the_page_on_machines_runs_without_a_cluster(tmp_path, monkeypatch, capsys):
    """On a real one its calls run in tests/sweeps."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks("docs/scale.md"):
        exec(compile(block.replace('on="ray"', "on=None"), "docs/scale.md", "exec"), names)
    assert "6 of 6 runs are finished" in capsys.readouterr().out
    assert len(list(tmp_path.glob("sweep/*/run.json"))) == 6


def test_no_document_with_python_is_left_out():
    documents = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    run_above = re.findall(r'blocks\("(.*?)"\)', Path(__file__).read_text())
    # The page on one's own data is run with its commands, in tests/test_commands_in_documents.py.
    assert {document for document in documents if blocks(document)} == {*run_above, "docs/own-data.md"}


LOOPS = {"lightning_loop", "skorch_loop", "transformers_loop"}  # of other libraries
SLOW = {"digits.py"}  # two minutes: `test_the_first_result_on_images_is_quick_to_try` shortens it


def glue_lines(source):
    """Return how many lines couple the models of another library: those of a subclass, or in a module's own methods."""
    own = re.search(r"^class Coupled.*\n((?:(?: .*)?\n)+)", source, re.MULTILINE)
    lines = own[1].splitlines() if own else re.findall(r"^ .*\bcoupler\..*$", source, re.MULTILINE)
    return sum(bool(line.strip()) for line in lines)


@pytest.mark.parametrize("example", [path for path in EXAMPLES if path.name not in SLOW], ids=lambda path: path.name)
def test_every_example_runs(example, capsys, monkeypatch, tmp_path):
    if example.name.startswith("laplace"):  # which brings torchvision
        pytest.importorskip("laplace", reason="laplace-torch is not installed")
    if example.name == "ray_tune.py":
        assert len([line for line in example.read_text().splitlines()[1:] if line]) <= 15
        monkeypatch.setenv("HOME", str(tmp_path))  # where it leaves its results
        pytest.importorskip("ray.tune", reason="needs ray[tune]", exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    if example.stem in LOOPS:
        warnings.simplefilter("ignore")  # what these libraries warn of is theirs to mend
    made = runpy.run_path(str(example), run_name="__main__")
    out = capsys.readouterr().out
    assert out
    if example.name == "ray_tune.py":
        assert "best: {'lr': 0.1}" in out
        assert sorted(made["found"].get_dataframe()["epochs"])[0] == 5  # the last to start is ended at once
    if example.name == "transformer.py":
        texts, shuffled = map(float, re.findall(r"(\S+) nats", out))
        assert shuffled > 2 * texts
    if example.name == "fine_tuning.py":
        near, far = map(float, re.findall(r"(\S+) nats", out))
        assert far > 3 * near
    if example.name == "own_photos.py":
        noise, lines = map(int, re.findall(r"(\d+)%", out))
        assert noise > 90 > 50 > lines
    if example.name == "own_loop.py":
        deep, greedy = re.findall(r"accuracy (\S+), mutual information far from the data (\S+)", out)
        assert float(greedy[0]) > float(deep[0]) - 0.03
        assert float(greedy[1]) > 0.3 > 0.1 > float(deep[1])
    if example.stem in LOOPS:
        assert 3 <= glue_lines(example.read_text()) <= 5
        assert float(re.findall(r"(\S+) nats", out)[-1]) > 0.2  # Deep Ensembles have 0.005, and 0.02 of text


def test_one_example_for_each_way_in():
    names = {"callback", "custom_loss", "custom_optimizer", "decide", "earlier", "extend"}
    names |= {"labels", "one_logit", "own_loop", "scikit_learn", "transformer"}
    assert names <= {path.stem for path in EXAMPLES}


def test_the_first_result_on_images_is_quick_to_try():
    names = runpy.run_path(str(ROOT / "examples" / "digits.py"))
    rows = names["main"](size=2, seeds=1, epochs=2).rows
    assert {row.set for row in rows} >= {"digits 0 to 7", "digits 8 and 9", "uniform", "bernoulli", "blobs"}
    assert {row.method for row in rows} == {"Deep Ensembles", "greedy, lambda_M = 3"}
    assert max(names["train"].labels) == 7


def test_examples_are_short():
    assert not [path.name for path in EXAMPLES if len(path.read_text().splitlines()) > 30]


def anchors(page):
    """Return what links may name behind a #: headings, as GitHub writes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower() for heading in re.findall(r"^#+ (.*)$", text, re.M)]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def broken_links(document, folder):
    """Return the links of a document, read as lying in a folder, to files or headings that are not there."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        name, _, anchor = target.partition("#")
        page = folder / name if name else document
        if not target.startswith("https://") and (not page.exists() or (anchor and anchor not in anchors(page))):
            broken.append(target)
    return broken


def test_links_in_the_documents_lead_somewhere():
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/**/*.md")]
    assert len(documents) > 5
    for document in documents:
        folder = document.parents[document.parent.name == "records"]  # what a person wrote is read on the page
        assert not broken_links(document, folder), document


def test_links_to_a_heading_or_a_file_that_is_not_there_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# Of p\\* and `size` ([M](x.md))\n```\n# code\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Own\n[a](other.md#of-p-and-size-m) [b](#own) [c](https://x.org/y#z) [d](other.md#code) [e](no.md#own)"
    )
    assert broken_links(page, tmp_path) == ["other.md#code", "no.md#own"]


def test_the_citation_names_this_version():
    assert f"version: {ge.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_first_ten_minutes_run_and_say_the_truth():
    names = {}
    for block in blocks("docs/start.md"):
        exec(compile(block, "docs/start.md", "exec"), names)
    near = names["together"].uncertainty(names["x"]).epistemic.mean()
    assert names["uncertainty"].epistemic.shape == (2,)
    assert names["probs"].shape == (5, 2, 2)
    assert names["together"].uncertainty(names["far"]).epistemic.mean() > near
    assert [len(names[name]) for name in ("three", "five", "accuracies")] == [3, 5, 5]


def test_the_page_on_the_method_runs_and_says_the_truth():
    names = {}
    for block in blocks("docs/method.md"):
        exec(compile(block, "docs/method.md", "exec"), names)
    ends = [((names[name] == 0) | (names[name] == 255)).float().mean().item() for name in ("wrapped", "clipped")]
    assert ends[0] < 0.05  # uniform over 256 values
    assert ends[1] > 0.5  # black or white


def test_every_method_is_described():
    reference, page = ((ROOT / f"docs/{name}.md").read_text() for name in ("reference", "method"))
    for name, kind in ge.method.METHODS.items():
        assert f"greedy_ensembles.method.{kind.__name__}\n" in reference
        assert re.search(rf"[`\"]{name}[`\"]", page)


@pytest.mark.skipif(
    not (Path(sys.executable).parent / "mkdocs").exists(), reason="the site's packages are not installed"
)
def test_the_site_builds_without_a_warning(tmp_path):
    command = [str(Path(sys.executable).parent / "mkdocs"), "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "results" / "two-moons" / "two-moons.png").exists()
    pages = "".join(page.read_text() for page in (tmp_path / "site").rglob("index.html"))
    known = r"squidfunk|www\.mkdocs|openreview|keepachangelog|semver|docs\.ray\.io|github\.com/NVIDIA"  # to follow
    assert not re.findall(rf'(?:src|href)="https?://(?!{known})', pages)
    named = set(re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert {page for page in named if "/" not in page} == {
        "index.md",
        *(page.name for page in (ROOT / "docs").glob("*.md")),
    }
    landing = (tmp_path / "site" / "index.html").read_text()
    for part in (
        "results/two-moons/two-moons.png",
        "pip install",
        "far away",
        'href="start/"',
        'href="results/mnist/mnist/"',
    ):
        assert part in landing
    method = (tmp_path / "site" / "method" / "index.html").read_text()
    assert 'href="../results/weighting/weighting/">the study</a>' in method
    assert (tmp_path / "site" / "results" / "weighting" / "weighting" / "index.html").exists()
    assert method.count("<math") == 1
    assert "\\lambda" not in method

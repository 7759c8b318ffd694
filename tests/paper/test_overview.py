import io

from rich.console import Console

from greedy_ensembles.paper.cost import Device
from greedy_ensembles.paper.overview import show_jobs, show_studies
from greedy_ensembles.paper.studies import STUDIES
from greedy_ensembles.paper.study import Protocol, jobs

H200 = Device("cuda", "NVIDIA H200")


def shown(show, *arguments):
    stream = io.StringIO()
    show(*arguments, Console(file=stream, width=200))
    return stream.getvalue()


def test_studies_are_listed_with_what_they_lack(tmp_path, write_mnist):
    write_mnist(tmp_path / "mnist", "train", 20, 0)
    write_mnist(tmp_path / "mnist", "t10k", 20, 0)
    text = shown(show_studies, list(STUDIES.values()), Protocol(), H200, tmp_path)
    assert all(name in text for name in STUDIES)
    (line,) = [line for line in text.splitlines() if line.strip().startswith("mnist ")]
    assert "45" in line  # (5 sizes x 2 methods + 5 more strengths) x 3 seeds
    assert "dtd (OOD)" in line
    assert "NVIDIA H200" in text


def test_runs_are_listed_with_their_state(tmp_path, tiny, shelf_with):
    protocol = Protocol()
    shelf = shelf_with(tiny, protocol, but=[3], figures=lambda job: {"message": "no"} if job.seed else {})
    lines = shown(show_jobs, tiny, jobs(tiny, protocol), shelf, H200, tmp_path).splitlines()
    states = [line.split()[1:] for line in lines if line.strip().startswith("mnist-")]
    assert [state[0] for state in states] == ["done", "done", "diverged", "needs"]
    assert lines[-1].startswith("To do: about 4 s")  # 2 members of an epoch of 2 s, as timed

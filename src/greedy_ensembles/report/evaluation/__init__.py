"""The evaluation of runs as it is shown: on the terminal, as CSV, JSON and LaTeX, and in pictures."""

from pathlib import Path

from greedy_ensembles.benchmark.comparison import Comparison
from greedy_ensembles.report.evaluation.data import to_csv, to_json
from greedy_ensembles.report.evaluation.latex import to_latex
from greedy_ensembles.report.evaluation.markdown import to_markdown
from greedy_ensembles.report.evaluation.pictures import write_pictures, write_radar
from greedy_ensembles.report.evaluation.terminal import show
from greedy_ensembles.storage import write_bytes

__all__ = ["show", "to_csv", "to_json", "to_latex", "to_markdown", "write_pictures", "write_radar", "write_tables"]


def write_tables(comparison: Comparison, folder: Path, stem: str = "evaluation") -> list[Path]:
    """Write evaluation.csv, .json and .tex, or with another stem, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"csv": to_csv(comparison), "json": to_json(comparison), "tex": to_latex(comparison)}
    paths = []
    for ending, text in contents.items():
        paths.append(folder / f"{stem}.{ending}")
        write_bytes(paths[-1], [text.encode()])
    return paths

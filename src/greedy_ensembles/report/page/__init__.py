"""One HTML file about runs: what was trained, how it went, how good it is, and what it looks like.

It needs no network and no other file, follows the reader's light or dark theme, and works without its script, which
only sorts tables, switches lines off and lets one look at one picture at a time.
"""

from pathlib import Path

from greedy_ensembles.report.page.build import Findings, build_page, dataset_of
from greedy_ensembles.report.page.planes import KnownPoints
from greedy_ensembles.report.page.records import Page
from greedy_ensembles.report.page.render import render
from greedy_ensembles.storage import write_bytes

__all__ = ["Findings", "KnownPoints", "Page", "build_page", "dataset_of", "render", "write_page"]


def write_page(page: Page, path: Path) -> None:
    """Write a page; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, [render(page).encode()])

"""One HTML file about runs: what was trained, how it went, how good it is, and what it looks like.

It needs no network and no other file, follows the reader's light or dark theme, and works without its script, which
only sorts tables, switches lines off and lets one look at one picture at a time.
"""

from greedy_ensembles.report.page.build import Findings, build_page, dataset_of
from greedy_ensembles.report.page.render import render, write_page

__all__ = ["Findings", "build_page", "dataset_of", "render", "write_page"]

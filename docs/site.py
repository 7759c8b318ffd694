"""What the built site needs beyond the pages: the results, and links that stay within it."""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

RESULTS = Path(__file__).parents[1] / "results"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]*)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add pages and pictures of results; readings stand at the end of pages already."""
    for path in sorted(RESULTS.rglob("*")):
        if path.suffix in (".md", ".png") and not path.name.endswith("reading.md"):
            files.append(File.generated(config, f"results/{path.relative_to(RESULTS)}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Point links to where things are in the site, and leave the text of those that lead out of it."""
    folder = dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        path, mark, anchor = target.partition("#")
        if "://" in target or not path:
            return link.group(0)
        place = normpath(join(folder, path)).removeprefix("../")  # in the project, results lie beside the documents
        found = files.get_file_from_path(place)
        if found is None or not found.inclusion.is_included():
            return text
        return f"{picture}[{text}]({relpath(place, folder or '.')}{mark}{anchor})"

    return _LINK.sub(moved, markdown)

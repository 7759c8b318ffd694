"""What the built site needs beyond the pages: the README as the first one, the results, links that stay, formulas."""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PROJECT = Path(__file__).parents[1]
RESULTS = PROJECT / "results"
_MATH = re.compile(r"^```math\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"```.*?```|`[^`\n]*`|(!?)\[([^\]]*)\]\(([^)\s:#]+)(#[^)\s]*)?\)", flags=re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the README, and pages and pictures of results; what lies among their records stands on the pages already."""
    files.append(File.generated(config, "index.md", abs_src_path=str(PROJECT / "README.md")))
    for path in sorted(RESULTS.rglob("*")):
        if path.suffix in (".md", ".png") and path.parent.name != "records":
            files.append(File.generated(config, f"results/{path.relative_to(RESULTS)}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Typeset formulas, point links to where things are in the site, and leave the text of those to other files."""
    folder, source = dirname(page.file.src_uri), Path(page.file.abs_src_path or "").parent

    def moved(link: re.Match[str]) -> str:
        picture, text, path, anchor = link.groups()
        if path is None:  # it is code
            return link.group(0)
        # In the project, results lie beside the documents, and the README above both.
        place = normpath(join(folder, path)).removeprefix("../").removeprefix("docs/")
        found = files.get_file_from_path(place)
        if found is not None and found.inclusion.is_included():
            return f"{picture}[{text}]({relpath(place, folder or '.')}{anchor or ''})"
        return text if (source / path).exists() else link.group(0)  # what is nowhere is left to be complained of

    return _MATH.sub(typeset, _LINK.sub(moved, markdown))


def typeset(formula: re.Match[str]) -> str:
    """Return a formula as MathML, which browsers show without a script; GitHub shows the same block by itself."""
    return f'<div class="math">{convert(" ".join(formula[1].split()), display="block")}</div>'

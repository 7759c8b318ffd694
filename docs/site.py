"""What the built site needs beyond the pages: pictures of results, and links to files that are not part of it."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).parents[1] / "results"


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures of results."""
    for picture in sorted(RESULTS.rglob("*.png")):
        files.append(File.generated(config, f"results/{picture.relative_to(RESULTS)}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point pictures to where they are in the site, and leave the text of links that lead out of it."""
    markdown = markdown.replace("](../results/", "](results/")
    markdown = re.sub(r"(?<!!)\[([^\]]*)\]\(results/[^)]*\)", r"\1", markdown)
    return re.sub(r"(?<!!)\[([^\]]*)\]\(\.\./[^)]*\)", r"\1", markdown)

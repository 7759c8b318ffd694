"""From records to one HTML file: every text is escaped, and what may run or be loaded is listed in the page itself.

The page's policy allows one style and one script, by their hashes, and pictures that it holds itself. So a hostile
name in a run, were it ever to slip through, could neither run anything nor call anyone.
"""

import base64
import hashlib
from importlib import resources

import jinja2
from markupsafe import Markup

from greedy_ensembles.report.page import charts
from greedy_ensembles.report.page.records import Page
from greedy_ensembles.report.table import to_html
from greedy_ensembles.version import __version__


def render(page: Page) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _read("style.css"), _read("page.js")
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    return environment.get_template("template.html").render(
        page=page,
        frame=charts,
        table=to_html,
        version=__version__,
        policy=policy,
        style=Markup(style),  # ours, and its hash is in the policy
        script=Markup(script),
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")

"""Lets the site show the examples in docstrings as code."""

import re
from typing import Any

import griffe

#: An example: a line that begins with >>>, and what follows it up to an empty line.
_EXAMPLE = re.compile(r"((?:^>>> .*\n?)(?:^(?!\s*$).*\n?)*)", flags=re.M)


class FencedExamples(griffe.Extension):
    """Puts examples between fences, which Markdown leaves alone."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the docstrings of a package before they are read."""
        _fence(pkg)


def _fence(item: griffe.Object) -> None:
    if item.docstring is not None:
        fenced = _EXAMPLE.sub(lambda example: f"\n```pycon\n{example[1].rstrip()}\n```\n", item.docstring.value)
        item.docstring.value = fenced
    for member in item.members.values():
        if isinstance(member, griffe.Object):  # and not another name for something elsewhere
            _fence(member)

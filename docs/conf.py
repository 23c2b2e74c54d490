"""Sphinx's settings: `make docs` builds these pages, strictly, into docs/_build/html."""

from __future__ import annotations

import re

project = "Shardproof"
author = "The Shardproof authors"
extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["_build", "history", "Thumbs.db", ".DS_Store"]
html_theme = "furo"
html_title = "Shardproof"
html_static_path = ["static"]
html_css_files = ["house.css"]
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
suppress_warnings = ["myst.header"]  # pages may begin below the first level
highlight_language = "none"

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+(?:README|CONTRIBUTING|CHANGELOG|SECURITY|tests|examples)[^)]*)\)")


def outside(app: object, name: str, source: list[str]) -> None:
    """Links to files of the repository that are no pages become their paths."""
    source[0] = _OUTSIDE.sub(lambda m: f"{m[1]} (`{m[2].replace('../', '')}`)", source[0])


def setup(app: object) -> None:
    """Called by Sphinx."""
    app.connect("source-read", outside)  # type: ignore[attr-defined]

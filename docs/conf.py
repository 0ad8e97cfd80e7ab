"""Sphinx's settings. `nox -s docs` builds the site from the folder that docs/sitemaker writes."""

from pathlib import Path

from unhang import __version__

project = "unhang"
author = "The unhang founders"
project_copyright = author
release = __version__

extensions = ["myst_parser"]
myst_enable_extensions = ["linkify"]  # pages are written for terminals too, with plain URLs
myst_linkify_fuzzy_links = False  # pretrain_gpt.py is no address
myst_heading_anchors = 4  # as GitHub has them
smartquotes = False  # --fix must stay --fix
highlight_language = "none"  # an indented block is a command line or its output

html_theme = "furo"
html_title = "unhang"
html_baseurl = "https://OWNER.github.io/unhang/"
html_static_path = ["static", "../compat/sweep/drawings.css"]
html_css_files = ["drawings.css", "site.css", "access.css"]
html_search_scorer = str(Path(__file__).with_name("static") / "scorer.js")  # Sphinx looks in the working directory
templates_path = ["templates"]
html_js_files = [(name, {"defer": "defer"}) for name in ("copy.js", "matrix.js")]
html_copy_source = False
html_show_sphinx = False
html_use_index = False  # search has more

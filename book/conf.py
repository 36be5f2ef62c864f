"""Settings of Sphinx for ``make book``: a static site of the executed lessons, the glossary and docs/."""

from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

project = "Distributed GNN training with DGL"
author, copyright = "the authors of the course", "the authors of the course"
extensions = ["myst_nb"]
root_doc = "README"  # the front page: picture, three ways to start, and table of lessons
include_patterns = [
    "README.md",
    "SECURITY.md",
    "benchmarks/RESULTS.md",
    "data/README.md",
    "docs/*.md",
    "notebooks/*.md",
    "notebooks/*.ipynb",
    "notebooks/solutions/*.ipynb",
]
html_theme = "sphinx_book_theme"
html_title = project
html_copy_source = False
html_show_copyright = False
html_theme_options = {"use_download_button": False, "home_page_in_toc": True, "navbar_persistent": []}
html_static_path = ["static"]
html_css_files = ["narrow.css"]
html_math_renderer = "mathml"  # MathJax would be loaded from another host
nb_execution_mode = "off"  # the notebooks contain their outputs
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # a shell command in a cell is no Python

ROOT = Path(__file__).resolve().parents[1]
# The pages in the sidebar, by the captions above them
PAGES = {
    "One process": ["notebooks/0[0-4]_*.ipynb"],
    "One machine, many processes": ["notebooks/0[5-8]_*.ipynb"],
    "Many machines": ["notebooks/09_*.ipynb", "notebooks/1[0-2]_*.ipynb"],
    "Other graphs, other tasks": ["notebooks/1[3-57]_*.ipynb"],
    "Real clusters": ["notebooks/16_*.ipynb"],
    "Reference": ["notebooks/*.md", "data/README.md"],
    "Runtime": ["docs/*.md", "benchmarks/RESULTS.md", "SECURITY.md"],
    "Solutions": ["notebooks/solutions/*.ipynb"],
}


def add_sidebar(_app, name: str, source: list[str]) -> None:
    """Add the sidebar to the front page, because GitHub would show its directives as text in README.md."""
    if name == root_doc:
        for caption, patterns in PAGES.items():
            paths = [path.relative_to(ROOT) for pattern in patterns for path in sorted(ROOT.glob(pattern))]
            pages = "\n".join(str(path.with_suffix("")) for path in paths)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def write_formula(translator, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers display without a script."""
    translator.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app) -> None:
    """Connect the functions of this file to Sphinx."""
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    app.connect("source-read", add_sidebar)

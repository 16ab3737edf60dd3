"""How Sphinx builds the site: ``make docs``. Nothing is fetched from a network, neither here nor by the pages."""

from __future__ import annotations

import re

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

import monitorch

project = "monitorch"
author = "the monitorch contributors"
release = version = monitorch.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "docs.from_code",
]
exclude_patterns = ["_static"]
smartquotes = False
nitpicky = True
highlight_language = "text"
# types in signatures are torch's, Python's or internal ones; names that people write in text must lead somewhere
nitpick_ignore_regex = [("py:(class|obj|exc|data|attr)", ".*")]
show_warning_types = True

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

# frameworks are not needed to read what our classes for them say
autodoc_mock_imports = [
    "accelerate",
    "ignite",
    "lightning",
    "mcp",
    "pytorch_lightning",
    "transformers",
]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
napoleon_use_rtype = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False

html_theme = "furo"
html_title = f"monitorch {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_copyright = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#17756c",
        "color-brand-content": "#17756c",
        "color-brand-visited": "#17756c",
    },
    "dark_css_variables": {
        "color-brand-primary": "#46bcae",
        "color-brand-content": "#46bcae",
        "color-brand-visited": "#46bcae",
    },
}
pygments_style, pygments_dark_style = "friendly", "github-dark"
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True


def _formula(writer: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """A formula as MathML, which browsers draw themselves."""
    is_block = isinstance(node, nodes.math_block)
    drawn = latex2mathml.tex2mathml(node.astext(), as_block=is_block)
    # bars and braces are as high as a letter; browsers would stretch those that stand alone, and move them
    drawn = re.sub(r"<mo(?: class=\"\w+\")?>(?=[{}‖]</mo>)", '<mo stretchy="false">', drawn)
    writer.body.append(f'<div class="formula">{drawn}</div>' if is_block else drawn)
    raise nodes.SkipNode


def _keep_bars(app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]) -> None:
    """A norm is written as it is in our docstrings; for Sphinx it would be the name of a text to put there."""
    code_of = None  # how far the line before a block of code is indented
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line.strip() and code_of is not None and indent <= code_of:
            code_of = None
        if code_of is None and not line.lstrip().startswith((">>>", "...")):
            outside = re.split(r"(``.*?``)", line)
            lines[number] = "".join(part if part.startswith("``") else part.replace("|", r"\|") for part in outside)
            if line.endswith("::"):
                code_of = indent


def _leave_out_numbers(app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]) -> None:
    """Fields of a named tuple that have no words of their own get a number from Python, which says nothing."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def _draw_dashes(app: Sphinx, tree: nodes.document) -> None:
    """What Sphinx puts between an option and its words; in our own text two hyphens begin an option of a command."""
    for text in list(tree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("doctree-read", _draw_dashes)
    app.connect("autodoc-process-docstring", _keep_bars)
    app.connect("autodoc-process-docstring", _leave_out_numbers)
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))

"""The site: `make docs` builds it without a network, and a warning is an error."""

import re

from docutils import nodes
from latex2mathml.converter import convert

import liftednet

project = "liftednet"
author = "the liftednet authors"
release = liftednet.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["examples", "sg_execution_times.rst", "gallery/sg_execution_times.rst"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 2
default_role = "py:obj"

html_theme = "furo"
html_title = f"liftednet {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_show_copyright = False

templates_path = ["_templates"]
autosummary_imported_members = True
autosummary_ignore_module_all = False
autosummary_context = {"front_door": liftednet.__all__}  # a name has one page, under the door
_OF_SCIKIT_LEARN = [
    f"set_{name}_request" for name in ("fit", "partial_fit", "predict", "predict_proba", "score")
] + ["get_metadata_routing"]
autodoc_default_options = {
    "show-inheritance": True,
    "exclude-members": ", ".join(_OF_SCIKIT_LEARN),
}
autodoc_typehints = "none"  # the signatures of the source have them; pages stay readable
napoleon_use_ivar = True
napoleon_use_rtype = False

sphinx_gallery_conf = {
    "examples_dirs": ["examples"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "remove_config_comments": True,
}

_UNSAFE = re.compile(r"(`[^`]*`)|([*|\\]|_(?![A-Za-z0-9_]))")


def as_prose(app, what, name, obj, options, lines):
    """Keep |x|, x_l and X* of docstrings as they are, where reStructuredText would read markup."""
    if what == "module":
        return
    example = False
    for number, line in enumerate(lines):
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if not example:
            lines[number] = _UNSAFE.sub(lambda found: found[1] or "\\" + found[2], line)


def inline_math(writer, node):
    """Write a formula in a line as MathML, which browsers know by themselves."""
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block_math(writer, node):
    """Write a formula of its own line."""
    formula = convert(node.astext(), display="block")
    writer.body.append(f'<div class="formula">{formula}</div>')
    raise nodes.SkipNode


def setup(app):
    """Connect both, the first before napoleon reads the sections."""
    app.connect("autodoc-process-docstring", as_prose, priority=400)
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))

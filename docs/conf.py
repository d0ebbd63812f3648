"""The site: `make docs` builds it without a network, and a warning is an error."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

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
myst_enable_extensions = ["colon_fence", "dollarmath"]
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
    f"set_{name}_request" for name in ("fit", "predict", "predict_proba", "score")
] + ["get_metadata_routing"]
autodoc_default_options = {"show-inheritance": True, "exclude-members": ", ".join(_OF_SCIKIT_LEARN)}
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


# What stands for a word of the glossary on a page; a word that is missing here is its own pattern.
_WORDS = {
    "KKT residual": "KKT residuals?",
    "duality gap": "duality gaps?",
    "global gap": "global gap",
    "Lipschitz constant": "Lipschitz constants?|Lipschitz",
    "lifted rule": "lifted rule",
    "feedforward rule": "feedforward rule",
    "error bar": "error bars?",
    "Gauss-Newton": "Gauss-Newton",
    "activation": "activations?",
    "calibration": "calibration|calibrated",
    "category": "category|categories",
    "certificate": "certificates?|certified",
    "conjugate": "conjugate(?! grad)",
    "divergence": "divergences?",
    "dual": "duals?",
    "epoch": "epochs?",
    "evidence": "evidence",
    "gap": "gaps?",
    "ignorance": "ignorance",
    "joint": "joint",
    "lam": "lam",
    "lifting": "lifting|lifted",
    "penalty": "penalty|penalties",
    "posterior": "posterior",
    "potential": "potentials?",
    "price": "(?<!A )(?<!at the )(?<!is the )prices?",
    "projection": "projections?",
    "prox": "prox|proximal",
    "relaxation": "relaxations?",
    "relevance": "relevance",
    "rho": "rho",
    "state": "(?<!CVXPY )(?<!section 4 )states?(?! (?:itself|it|them|that|in CVXPY)\\b)",
    "subproblem": "subproblems?",
    "sweep": "sweeps?",
    "tight": "tight",
    "warranty": "warranty",
}
_APART = (nodes.title, nodes.reference, addnodes.pending_xref, addnodes.download_reference)
_APART += (nodes.literal_block, nodes.math, nodes.math_block, nodes.raw)


class FirstUses(SphinxTransform):
    """Lead from the first use of a word on a page to the glossary."""

    default_priority = 850

    def apply(self, **options):
        """Put a reference in the place of each word's first use."""
        if self.env.docname.startswith(("glossary", "gallery/", "reference/")):
            return
        for word, pattern in _WORDS.items():
            found = re.compile(rf"(?<![\w.-])(?:{pattern})(?![\w(=-])", re.IGNORECASE)
            for text in self.document.findall(nodes.Text):
                place = found.search(text)
                if place and not any(isinstance(node, _APART) for node in _above(text)):
                    _lead(text, place, word)
                    break


def _above(node):
    """Yield the nodes that hold a node."""
    while (node := node.parent) is not None:
        yield node


def _lead(text, place, word):
    """Replace a part of a text, or the code that is that part and no more, by a reference."""
    target = addnodes.pending_xref(
        "", refdomain="std", reftype="term", reftarget=word, refexplicit=True, refwarn=True
    )
    code = text.parent if isinstance(text.parent, nodes.literal) else None
    if code is not None:
        if place[0] != text:
            return
        code.parent.replace(code, target)
        target += code
        return
    target += nodes.inline("", place[0])
    before, after = text[: place.start()], text[place.end() :]
    text.parent.replace(text, [nodes.Text(before), target, nodes.Text(after)])


def setup(app):
    """Connect all, the first before napoleon reads the sections."""
    app.add_transform(FirstUses)
    app.connect("autodoc-process-docstring", as_prose, priority=400)
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))

"""A card of a saved model: what it is and what is proven of it, as Hugging Face has them."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Any

import liftednet
from liftednet.errors import LiftedError
from liftednet.validation import model_of

from .certificate import certify

_TASKS = {"LiftedClassifier": "classification", "LiftedRegressor": "regression"}


def card_of(model: Any, path: Path) -> str:
    """Return a model card in Markdown, which begins with metadata in YAML.

    What `certify` proves from the weights stands in it as it prints, and where nothing can be
    certified, why. Model Cards for Model Reporting (Mitchell et al., 2019) names what such a card
    is to hold beside: data, use and evaluation, of which a file knows nothing.

    Args:
        model: a fitted model or estimator.
        path: of its file.
    """
    name, inside = type(model).__name__, model_of(model)
    task = [f"pipeline_tag: tabular-{_TASKS[name]}"] if name in _TASKS else []
    about = [repr(model)] if model is not inside else [str(inside)]
    about += [
        f"{title}: {', '.join(map(repr, values.tolist()))}"
        for title, key in (("columns", "feature_names_in_"), ("classes", "classes_"))
        if (values := getattr(model, key, None)) is not None
    ]
    numbers = sum(x.stacked().numel() for x in inside.weights)
    about.append(f"{numbers:,} weights in {inside.weights[0].matrix.dtype}")
    try:
        proven = str(certify(model))
    except LiftedError as error:
        proven = f"nothing was certified: {error}"
    return "\n".join([
        "---", "library_name: liftednet", *task, "tags:", "- liftednet", "- safetensors", "---",
        "", f"# {name}", "", *(indent(x, "    ") for x in about),
        "", "## What is proven", "",
        "By `liftednet.certify`, from the weights, of the outputs of the network:",
        "", indent(proven, "    "),
        "", "## How to use it", "",
        "    from liftednet import load", "",
        f"    model = load({path.name!r})  # liftednet {liftednet.__version__}",
        "    model.predict(X)",
        "", "## Data, intended use, evaluation", "",
        "The file knows nothing of these: whoever shares it writes them here.", "",
    ])  # fmt: skip

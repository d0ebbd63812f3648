"""Every script is importable: what it takes from the library and from the others is there."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [p.relative_to(ROOT) for p in sorted((ROOT / "benchmarks").rglob("*.py"))]


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.stem != "__main__"], ids=str)
def test_a_script_finds_what_it_takes_from_the_library(script: Path) -> None:
    try:
        import_module(".".join(script.with_suffix("").parts))
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in ("benchmarks", "liftednet"):
            raise
        pytest.skip(f"{error.name} is an opponent that is not installed here")

"""What the tests of solvers share: small problems have the compiled loops that large ones have."""

import pytest

from liftednet.solvers.compiled import loops, solvers


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the compiler, as no user does on a small problem."""
    monkeypatch.setattr(loops, "WORTH_COMPILING", 0)
    monkeypatch.setattr(solvers, "compiled_beside", lambda *_: True)

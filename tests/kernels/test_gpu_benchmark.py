"""The GPU benchmark: that it refuses in one sentence, compiles, and that its parts run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.checks import cases, check, gram_check
from benchmarks.gpu.race import finishes
from benchmarks.gpu.report import Report
from benchmarks.gpu.speed import output_speeds
from benchmarks.gpu.sweeps import sweep_speeds
from benchmarks.gpu.time_checks import time_checks
from benchmarks.gpu.timing import Ceilings, Scale
from benchmarks.gpu.training_data import images

ROOT = Path(__file__).parents[2]
TOY = Scale(torch.device("cpu"), True)


def benchmark(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do() -> None:
    result = benchmark()
    assert result.returncode == 2
    assert result.stderr.startswith("There is no CUDA device here.")
    assert "--interpret" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles for CUDA on Linux alone")
def test_every_kernel_compiles_for_a_hopper_card() -> None:
    result = benchmark("--compile")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "of shared memory" in result.stdout


def test_it_needs_torch_triton_and_numpy_alone() -> None:
    others = "cvxpy scipy sklearn rich typer pooch safetensors matplotlib osqp scs optuna"
    blocked = f"import sys\nfor name in {others!r}.split(): sys.modules[name] = None\n"
    code = f"{blocked}from benchmarks.gpu.run import run\nimport benchmarks.gpu.training_data"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr


def test_its_checks_pass_under_the_interpreter() -> None:
    for case in islice(cases(TOY), 3):
        assert check(case).passed
    assert gram_check(TOY).passed
    assert all(found.passed for found in time_checks(TOY))


def test_its_trainings_run_under_the_interpreter() -> None:
    data = images(TOY)
    sweep = next(iter(sweep_speeds(TOY, data)))
    assert list(sweep.objectives) == sorted(sweep.objectives, reverse=True)
    assert [finish.method.split()[0] for finish in finishes(TOY, data)] == ["lifted"] * 2 + [
        "Adam"
    ] * 2


def test_a_check_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(cases(TOY))
    monkeypatch.setattr("liftednet.solvers.kernels.device.has_triton", lambda: False)
    found = check(case)
    assert not found.passed
    assert "Triton" in found.note


def test_the_report_is_written_row_by_row(tmp_path: Path) -> None:
    report = Report({"card": "none"})
    ceilings = Ceilings(1e9, 1e9, 1e9, 1e9)
    report.add("Output fits", islice(output_speeds(TOY, ceilings), 1), tmp_path)
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["heading"] == {"card": "none"}
    assert record["Output fits"][0]["problem"] == "8 x 10, one-hot"
    assert "| 8 x 10, one-hot |" in (tmp_path / "gpu.md").read_text()

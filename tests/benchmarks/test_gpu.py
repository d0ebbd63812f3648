"""The GPU benchmark: that it refuses in one sentence, compiles, and that its parts run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from itertools import islice
from math import inf
from pathlib import Path

import pytest
import torch

import benchmarks.gpu.run as run_module
from benchmarks.gpu.checks import cases, check, check_jobs, gram_check, recorded_check
from benchmarks.gpu.jobs import Job, Runner
from benchmarks.gpu.opponents import StateLoop, output_seconds
from benchmarks.gpu.problems import simplex_fit, squared_fit, state_fit
from benchmarks.gpu.race import finishes
from benchmarks.gpu.report import Report
from benchmarks.gpu.speed import output_speeds
from benchmarks.gpu.sweeps import sweep_speeds
from benchmarks.gpu.timing import Ceilings, Scale
from benchmarks.gpu.training_data import images
from liftednet import activations
from liftednet.activations import ReLU
from liftednet.divergences import tight

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
    others = "cvxpy scipy sklearn rich typer pooch safetensors matplotlib osqp scs"
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
    assert recorded_check(TOY).passed


def test_its_trainings_run_under_the_interpreter() -> None:
    data = images(TOY)
    sweep = next(sweep_speeds(TOY, data)).work()
    assert list(sweep.objectives) == sorted(sweep.objectives, reverse=True)
    methods = [job.work().method.split()[0] for job in finishes(TOY, data)]
    assert methods == ["lifted"] * 2 + ["Adam"] * 2


@pytest.mark.parametrize("name", ["ReLU", "Sigmoid"])
def test_the_loops_of_torch_reach_the_tolerance(name: str) -> None:
    layer = getattr(activations, name)()
    problem = state_fit(40, 12, 5, layer, tight(layer), TOY.device, condition=235.0)
    weight = problem.links[0].weight.double()
    assert float(torch.linalg.cond(weight.T @ weight)) == pytest.approx(235.0, rel=1e-3)
    loop = StateLoop(TOY, problem)
    assert loop.stages is not None
    assert loop.seconds(fused=True) > 0  # traced in one piece, as a graph asks


def test_what_a_compiler_fuses_solves_the_output_fits() -> None:
    fits = [
        simplex_fit(50, classes, soft, TOY.device) for classes, soft in ((3, True), (10, False))
    ]
    fits += [squared_fit(50, 7, layer, TOY.device) for layer in (ReLU(), activations.Sigmoid())]
    assert all(output_seconds(TOY, fit) > 0 for fit in fits)  # NaN where no steps are enough


def test_a_row_is_kept_where_an_opponent_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", broken)
    row = next(output_speeds(TOY, Ceilings(1e9, 1e9, 1e9, 1e9))).work()
    assert row.milliseconds > 0
    assert math.isnan(row.times_best)


def test_a_check_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(cases(TOY))
    monkeypatch.setattr("liftednet.solvers.kernels.device.has_triton", lambda: False)
    found = check(case)
    assert not found.passed
    assert "Triton" in found.note


def test_the_report_is_written_row_by_row(tmp_path: Path) -> None:
    report = Report({"card": "none"})
    ceilings = Ceilings(1e9, 1e9, 1e9, 1e9)
    report.add("Output fits", Runner(inf).rows(islice(output_speeds(TOY, ceilings), 1)), tmp_path)
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["heading"] == {"card": "none"}
    assert record["Output fits"][0]["problem"] == "8 x 10, one-hot"
    assert "| 8 x 10, one-hot |" in (tmp_path / "gpu.md").read_text()


def test_a_job_that_fails_does_not_stop_the_others() -> None:
    def broken() -> None:
        raise RuntimeError("an illegal memory access was encountered\nand more")

    runner = Runner(inf)
    jobs = [Job("first", lambda: 1), Job("second", broken), Job("third", lambda: 3)]
    assert list(runner.rows(jobs)) == [1, 3]
    assert runner.value("data", broken, "none") == "none"
    assert [failure.job for failure in runner.failures] == ["second", "data"]
    assert runner.failures[0].error == "RuntimeError: an illegal memory access was encountered"


def test_jobs_after_the_deadline_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    runner = Runner(-inf)
    assert list(runner.rows([Job("late", lambda: 1)])) == []
    assert "late" in capsys.readouterr().out
    assert "time was up" in runner.failures[0].error


def test_it_ends_with_a_record_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    few = [*islice(check_jobs(TOY), 1), Job("time", broken)]
    monkeypatch.setattr(run_module, "check_jobs", lambda scale: iter(few))
    monkeypatch.setattr(run_module, "ceilings", broken)
    monkeypatch.setattr(run_module, "images", broken)
    monkeypatch.setattr("benchmarks.gpu.speed.simplex_fit", broken)
    monkeypatch.setattr("benchmarks.gpu.speed.state_fit", broken)
    assert run_module.run(TOY.device, tmp_path) == 1
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["Correctness"][0]["passed"]
    assert len(record["Output fits"]) == 2
    failed = [failure["job"] for failure in record["Failures"]]
    assert {"time", "ceilings", "training data", "8 x 10, one-hot"} <= set(failed)

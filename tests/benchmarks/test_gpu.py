"""The GPU benchmark: that it refuses in one sentence, compiles, and that its parts run."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch

import benchmarks.gpu.run as run_module
from benchmarks.gpu.checks import check_jobs, gram_check, large_check, replayed_check
from benchmarks.gpu.jobs import Job
from benchmarks.gpu.race import finishes
from benchmarks.gpu.sweeps import sweep_speeds
from benchmarks.gpu.timing import Scale
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


def test_its_single_checks_pass_under_the_interpreter() -> None:
    assert all(found(TOY).passed for found in (gram_check, large_check, replayed_check))


def test_its_trainings_run_under_the_interpreter() -> None:
    data = images(TOY)
    sweep = next(sweep_speeds(TOY, data)).work()
    assert list(sweep.objectives) == sorted(sweep.objectives, reverse=True)
    methods = [job.work().method.split()[0] for job in finishes(TOY, data)]
    assert methods == ["lifted"] * 3 + ["Adam"] * 7


def test_it_ends_with_a_record_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    few = [*islice(check_jobs(TOY), 1), Job("time", broken)]
    monkeypatch.setattr(run_module, "check_jobs", lambda scale: iter(few))
    monkeypatch.setattr(run_module, "ceilings", broken)
    monkeypatch.setattr(run_module, "images", broken)
    monkeypatch.setattr("benchmarks.gpu.speed.state_fit", broken)
    assert run_module.run(TOY.device, tmp_path) == 1
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["Correctness"][0]["passed"]
    failed = [failure["job"] for failure in record["Failures"]]
    assert {"time", "ceilings", "training data"} <= set(failed)
    assert any("below 5, ReLU()" in job for job in failed)

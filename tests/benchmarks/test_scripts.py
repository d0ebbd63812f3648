"""What benchmarks and pages show, load and refuse: figures, data, scripts, runs, the GPU's."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks import data, prose
from benchmarks.data import archives
from benchmarks.data.mnist import mnist
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.checks import gram_check, large_check, replayed_check
from benchmarks.gpu.race import finishes
from benchmarks.gpu.sweeps import sweep_speeds
from benchmarks.gpu.timing import Scale
from benchmarks.gpu.training_data import images
from benchmarks.prose import charts
from liftednet.errors import DataError
from tests.models.networks import refuses


@pytest.mark.parametrize("page", prose.PAGES, ids=lambda page: page.stem)
def test_writing_the_figures_changes_nothing(page) -> None:
    text = page.read_text(encoding="utf-8")
    assert prose.written(text) == text


@pytest.mark.parametrize("name", charts.specs())
def test_a_chart_shows_what_the_results_say(name) -> None:
    assert charts.kept(prose.CHARTS / f"{name}.svg") == charts.drawn(name)


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


def test_recorded_sets_have_their_published_counts(data_folder: Path) -> None:
    windows = data.har2(data_folder)
    assert windows.y_train.bincount().tolist() == [3586, 3766]
    assert windows.y_test.bincount().tolist() == [1448, 1499]
    assert torch.allclose(windows.x_train.std((0, 1)), torch.ones(9), atol=1e-4)
    noise = data.har2(data_folder, noise_variance=2.0).x_test - windows.x_test
    assert abs(float(noise.var()) - 2) < 0.01 and abs(float(noise.mean())) < 0.01
    assert len(data.har_subjects(data_folder).unique()) == 21
    rolls = data.jsb_chorales(data_folder)
    parts = (rolls.train, rolls.valid, rolls.test)
    assert [len(part) for part in parts] == [229, 76, 77]
    assert [int(part.lengths.sum()) + len(part) for part in parts] == [13_807, 4_602, 4_725]


def test_missing_data_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data folder is named, and the cache is empty."""
    monkeypatch.delenv(archives.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(archives, "cache_folder", lambda: tmp_path)
    refuses(DataError, "download=True", mnist)
    refuses(DataError, "the folder", mnist, tmp_path / "typing_error")


TOY = Scale(torch.device("cpu"), True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu"])
    monkeypatch.setattr(os, "environ", dict(os.environ))  # of which it changes some
    assert main() == 2
    said = capsys.readouterr().err
    assert said.startswith("There is no CUDA device here.") and "--interpret" in said


@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles for CUDA on Linux alone")
def test_every_kernel_compiles_for_a_hopper_card() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--compile"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "of shared memory" in result.stdout


def test_its_single_checks_pass_under_the_interpreter() -> None:
    assert gram_check(TOY).passed and large_check(TOY).passed
    assert replayed_check(TOY, False).passed and replayed_check(TOY, True).passed


def test_its_trainings_run_under_the_interpreter() -> None:
    data = images(TOY)
    sweep = next(sweep_speeds(TOY, data)).work()
    assert list(sweep.objectives) == sorted(sweep.objectives, reverse=True)
    methods = [job.work().method.split()[0] for job in finishes(TOY, data)]
    assert methods == ["lifted"] * 3 + ["Adam"] * 7

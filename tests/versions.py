"""Install the wheel into clean environments and run tests there: `python -m tests.versions`.

For each Python from 3.11 on that is to be had, with the newest dependencies that setup.cfg allows,
and for the oldest Python with the oldest ones, too. Says of each what was installed, and ends with
status 1 where a test fails. It downloads a torch for each of them, and takes some minutes each.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
WITHOUT_CUDA = "https://download.pytorch.org/whl/cpu"
BESIDE = ("pytest", "pytest-xdist", "hypothesis", "pandas", "nbformat")
TESTS = (
    "docs/test_examples.py::test_the_interval_holds_about_as_many_answers_as_it_says",
    "docs/test_examples.py::test_the_certified_network_rises",
    "solvers/test_reference.py", "models/test_estimators.py",
)  # fmt: skip


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that is read on."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, env=environment
    )


def oldest() -> list[str]:
    """Return the oldest dependencies that setup.cfg allows, as pip takes them."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"].split()
    lines += config["options.extras_require"]["plots"].split()
    return [line.replace(">=", "==") for line in lines]


def tried(python: str, wheel: Path, pins: list[str], tests: list[str]) -> bool:
    """Say whether the tests pass in a new environment, which is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(python, "-m", "venv", place / "env", cwd=place)
        inside = place / "env/bin/python"
        pip = (inside, "-m", "pip", "install", "-q")
        torch = [pin for pin in pins if pin.startswith("torch==")] or ["torch"]
        # Where that index cannot be reached, what follows takes torch from where pip has it.
        run(*pip, "--retries", "0", "--index-url", WITHOUT_CUDA, *torch, cwd=place)
        installed = run(*pip, f"{wheel}[plots]", *BESIDE, *pins, cwd=place)
        if installed.returncode:
            print(f"{python}: not installed:\n{installed.stderr[-2000:]}")
            return False
        for name in ("tests", "docs", "README.md", "setup.cfg", "benchmarks"):  # and no sources
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, place / name)
        found = run(inside, "-m", "pytest", "-q", "-n", "2", *tests, cwd=place)
        packages = run(inside, "-m", "pip", "list", "--format=freeze", cwd=place).stdout.split()
        named = ("torch==", "numpy==", "scipy==", "cvxpy==", "scikit-learn==")
        shown = ", ".join(x for x in packages if x.startswith(named))
        said = (found.stdout.strip() or found.stderr.strip() or "nothing").splitlines()
        print(f"{python}, {shown}: {said[-1]}")
        if found.returncode:
            print(found.stdout[-4000:], found.stderr[-2000:])
        return found.returncode == 0


def main() -> None:
    """Build the wheel, and try it in every environment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=VERSIONS, help="Python versions")
    parser.add_argument("--ages", nargs="*", default=("newest", "oldest"), help="of dependencies")
    parser.add_argument("--pins", nargs="*", default=[], help="such as torch==2.13.0")
    parser.add_argument("tests", nargs="*", default=[f"tests/{name}" for name in TESTS])
    given = parser.parse_args()
    names = [f"python{version}" for version in given.only]
    there = [name for name in names if run(name, "--version", cwd=ROOT).returncode == 0]
    if missing := set(names) - set(there):
        print(f"not to be had here: {', '.join(sorted(missing))}")
    with tempfile.TemporaryDirectory() as folder:
        built = run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=ROOT)
        if built.returncode:
            sys.exit(built.stdout + built.stderr)
        (wheel,) = Path(folder).glob("*.whl")
        environments = [(name, given.pins) for name in there if "newest" in given.ages]
        if there and "oldest" in given.ages:
            environments.append((there[0], oldest()))
        passed = [tried(name, wheel, pins, given.tests) for name, pins in environments]
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()

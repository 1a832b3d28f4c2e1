"""The committed generated code is what the schemas generate now."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLATC_MISSING = 3
FLATC_VERSION = "flatc version 2.0.8"
"""Other releases write other Python for the same schema."""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gen")
    result = subprocess.run(
        ["bash", "scripts/gen.sh", str(out)], cwd=ROOT, env={**os.environ, "PYTHON": sys.executable},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert result.returncode in (0, FLATC_MISSING), result.stdout + result.stderr
    return out


def files(root: Path, folder: str) -> dict[str, str]:
    suffixes = (".py", ".pyi")
    return {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in suffixes and path.name != "__init__.py"
    }


def compare(generated: Path, folder: str) -> None:
    now, committed = files(generated, folder), files(ROOT / "protos", folder)
    assert now.keys() == committed.keys(), "run `make gen` and commit"
    stale = [name for name in now if now[name] != committed[name]]
    assert not stale, f"run `make gen` and commit: {stale}"


def test_protobuf_code_is_current(generated: Path) -> None:
    assert len(files(generated, "penstock/v1")) >= 4 * 5
    compare(generated, "penstock/v1")


def test_flatbuffers_code_is_current(generated: Path) -> None:
    flatc = shutil.which("flatc")
    if flatc is None:
        pytest.skip("flatc is missing: apt-get install flatbuffers-compiler")
    version = subprocess.run([flatc, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if version != FLATC_VERSION:
        pytest.skip(f"the committed code is of {FLATC_VERSION}, this is {version}")
    compare(generated, "penstock/fb")

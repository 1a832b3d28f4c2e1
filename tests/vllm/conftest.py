"""One mesh with real vLLM and the nano model, on the CPU, for all tests that leave it as they found it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.harness import Mesh, start_mesh

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def vllm_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One worker with the nano model. vLLM takes about 25 s to load."""
    with start_mesh(tmp_path_factory.mktemp("vllm") / "state", engine="vllm", timeout_s=240) as mesh:
        yield mesh


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder runs real vLLM: it may take its time, and it needs the package."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))
            if importlib.util.find_spec("vllm") is None:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed: scripts/setup.sh --engine vllm"))

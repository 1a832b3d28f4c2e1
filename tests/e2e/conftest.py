"""One simulated mesh for all tests that leave it as they found it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.harness import Mesh, start_mesh

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def sim_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two gateways, two routers, two workers on the simulator with 2 ms steps. Don't kill anything in it."""
    flags = ("--gateways", "2", "--routers", "2", "--workers", "2")
    with start_mesh(tmp_path_factory.mktemp("sim") / "state", *flags, env={"PENSTOCK_SIM_STEP_MS": "2"}) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def crash_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One of each process, for the tests of a module that kill them and wait until all serve again."""
    with start_mesh(tmp_path_factory.mktemp("crash") / "state") as mesh:
        yield mesh

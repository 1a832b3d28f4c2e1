"""`penstock status`: what runs, for people and for machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from services.cli.banner import command_name
from services.cli.errors import CliError
from services.cli.processes import working_pid
from services.cli.state import MeshState, StateDir

if TYPE_CHECKING:
    from pathlib import Path


def running_mesh(state: StateDir) -> MeshState:
    """What runs on `state`.

    Raises:
        CliError: nothing does.
    """
    mesh = state.read_mesh() if state.is_running() else None
    if mesh is None:
        raise CliError(f"nothing is running on {state.root}. Start it with: {command_name()} up")
    return mesh


def status(state_dir: Path, *, as_json: bool) -> int:
    """Print what runs; the exit status.

    Raises:
        CliError: nothing does.
    """
    state = StateDir(state_dir)
    mesh = running_mesh(state)
    console = Console(highlight=False, soft_wrap=True)
    if as_json:
        console.out(json.dumps(_json(mesh, state.api_key()), indent=2), highlight=False)
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("process", "health", "address", "pid", "restarts"):
        table.add_column(title)
    for process in mesh.processes:
        table.add_row(
            process.name, process.health, process.address, str(working_pid(process.pid) or "-"),
            str(process.restarts or ""),
        )  # fmt: skip
    console.print(table)
    console.print(f"\n{mesh.model} on {mesh.engine}\nresponse cache: {mesh.cache}", markup=False)
    console.print(f"OpenAI API {mesh.base_url}/v1   gRPC {mesh.grpc_target}")
    console.print(f"key in {state.root / 'api_key'}, logs in {state.logs}", markup=False)
    return 0


def _json(mesh: MeshState, api_key: str | None) -> dict[str, object]:
    return {
        "base_url": mesh.base_url,
        "grpc_target": mesh.grpc_target,
        "api_key": api_key,
        "ca_file": mesh.ca_file,
        "processes": [
            process.model_copy(update={"pid": working_pid(process.pid)}).model_dump(
                include={"role", "name", "pid", "address", "health"}
            )
            for process in mesh.processes
        ],
    }

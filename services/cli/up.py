"""`penstock up`: checks first, then the supervisor, here or in a session of its own."""

from __future__ import annotations

import logging
import logging.handlers
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import uvloop

from services.cli.console import Console
from services.cli.errors import CliError
from services.cli.plan import make_plan, survey
from services.cli.ports import choose_ports
from services.cli.processes import end_leftovers
from services.cli.report import EVENT, Ready
from services.cli.state import LOG_BYTES_MAX, StateDir
from services.cli.supervisor import Supervisor
from services.common import logs

if TYPE_CHECKING:
    from services.cli.options import UpOptions
    from services.cli.report import Reporter


def up(options: UpOptions, *, detach: bool) -> int:
    """Start a mesh and keep it running until it is told to stop; with `detach` return once it is up.

    Raises:
        CliError: it can't be started as asked; nothing was.
    """
    if detach:
        return _start_daemon(options)
    with Console() as console:
        status = run_mesh(options, console)
        if status == 0:
            console.stopped()
        return status


def run_mesh(options: UpOptions, report: Reporter) -> int:
    """The supervisor in this process; the exit status.

    Raises:
        CliError: see `up`.
    """
    state = StateDir(options.state_dir)
    state.create()
    if not state.lock():
        raise CliError(_already_running(state))
    try:
        stale = state.read_mesh()
        if stale is not None:
            end_leftovers(stale)
            state.remove_mesh()
        plan = make_plan(options, survey(), choose_ports(options), state.tenants)
        key = state.ensure_tenants()
        if any(spec.role == "redis" for spec in plan.processes):
            state.redis.mkdir(exist_ok=True)
        _log_to(state)
        supervisor = Supervisor(plan, state, report, api_key=key, start_timeout_s=options.start_timeout_s)
        status: int = uvloop.run(supervisor.run())
        return status
    finally:
        state.unlock()


def _already_running(state: StateDir) -> str:
    mesh = state.read_mesh()
    where = "" if mesh is None else f" at {mesh.base_url}"
    flag = f" --state-dir {state.root}"
    return f"already running{where}. Stop it with: penstock down{flag}, or start another with another --state-dir."


def _log_to(state: StateDir) -> None:
    """The supervisor's own log, bounded."""
    handler = logging.handlers.RotatingFileHandler(
        state.log_path("supervisor"), maxBytes=LOG_BYTES_MAX, backupCount=1, encoding="utf-8"
    )
    logs.configure("supervisor", "info", handler)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every health check otherwise


def _start_daemon(options: UpOptions) -> int:
    """Run `daemon` in a session of its own and show its events until it is up or has failed."""
    reading, writing = os.pipe()
    state = StateDir(options.state_dir)
    state.create()
    with state.log_path("supervisor").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.cli.daemon", str(writing), options.model_dump_json()],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=(writing,),
        )  # fmt: skip
    os.close(writing)
    try:
        with Console(detached=True) as console, os.fdopen(reading, encoding="utf-8") as events:
            for line in events:
                event = EVENT.validate_json(line)
                console(event)
                if isinstance(event, Ready):
                    return 0
    except KeyboardInterrupt:
        process.terminate()  # not up yet: the user wants nothing of it
        process.wait(timeout=120)
        return 130
    process.wait(timeout=120)
    if not console.failed:
        tail = "\n  ".join(state.log_tail("supervisor"))
        raise CliError(f"the supervisor ended with status {process.returncode}:\n  {tail}")
    return 1

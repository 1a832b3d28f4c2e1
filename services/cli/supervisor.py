"""Keeps the processes of a plan running until it is told to stop. The rules are in `table`; here are the effects."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from typing import TYPE_CHECKING

from services.cli.health import HealthProbe
from services.cli.plan import STOP_ORDER
from services.cli.processes import created, family, how_it_ended, kill_group, spawn
from services.cli.report import Changed, Failed, Planned, Ready, Stopping
from services.cli.state import MeshState, ProcessState
from services.cli.table import GiveUp, Health, ProcessTable

if TYPE_CHECKING:
    from services.cli.plan import Plan, ProcessSpec
    from services.cli.report import Reporter
    from services.cli.state import StateDir

log = logging.getLogger(__name__)

PROBE_S = 0.2
"""Between two health checks of a process that does not serve."""
PROBE_SERVING_S = 1.0
"""Between two health checks of one that does."""
LOG_CHECK_S = 60.0
DRAIN_S = 30.0
"""What each service gets to finish running work (their `drain_s`)."""
KILL_AFTER_S = DRAIN_S + 5.0


class Supervisor:
    """One mesh. `run` is its life.

    Args:
        plan: what to keep running.
        state: where to write it down; its lock is held by the caller.
        report: told of every change.
        api_key: for the `Ready` report.
        start_timeout_s: bound on the first start of everything.
    """

    def __init__(self, plan: Plan, state: StateDir, report: Reporter, *, api_key: str, start_timeout_s: float) -> None:
        self._plan = plan
        self._state = state
        self._report = report
        self._api_key = api_key
        self._start_timeout_s = start_timeout_s
        self._table = ProcessTable(spec.name for spec in plan.processes)
        self._created: dict[str, float | None] = {}
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._stop = asyncio.Event()
        self._insist = asyncio.Event()
        self._up = asyncio.Event()
        self._failed: Failed | None = None

    async def run(self) -> int:
        """Start everything, keep it running until SIGTERM, SIGINT or SIGHUP, stop everything; the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            loop.add_signal_handler(number, self._on_signal)
        self._report(
            Planned(waiting_for={spec.name: spec.waiting_for for spec in self._plan.processes}, notes=self._plan.notes)
        )
        async with asyncio.TaskGroup() as tasks:
            for spec in self._plan.processes:
                tasks.create_task(self._keep(spec), name=spec.name)
            helpers = [tasks.create_task(self._first_start()), tasks.create_task(self._bound_logs())]
            await self._stop.wait()
            for helper in helpers:
                helper.cancel()
            await self._stop_all()
        self._state.remove_mesh()
        if self._failed is not None:
            self._report(self._failed)
            return 1
        return 0

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._insist.set()
        elif self._failed is None:
            self._report(Stopping())
        self._stop.set()

    async def _first_start(self) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._up.wait()
        except TimeoutError:
            late = next(row.name for row in self._table if row.health is not Health.SERVING)
            self._fail(f"{late} was not ready after {self._start_timeout_s:.0f} s (--start-timeout-s)", late)
            return
        seconds = time.monotonic() - began
        self._report(Ready(mesh=self._mesh(), api_key=self._api_key, state_dir=self._state.root, seconds=seconds))

    async def _keep(self, spec: ProcessSpec) -> None:
        """Run one process, again and again."""
        while not self._stop.is_set():
            self._state.bound_log(spec.name)
            process = await spawn(spec.argv, spec.env, self._state.log_path(spec.name))
            self._created[spec.name] = created(process.pid)
            self._running[spec.name] = process
            self._table.started(spec.name, process.pid, time.monotonic())
            self._changed()
            if self._stop.is_set():  # told to stop while it was being spawned
                kill_group(process.pid)
            code = await self._until_exit(spec, process)
            del self._running[spec.name]
            kill_group(process.pid)
            if self._stop.is_set():
                break
            await self._after_exit(spec, code)
        self._table.stopped(spec.name, time.monotonic())
        self._changed()

    async def _until_exit(self, spec: ProcessSpec, process: asyncio.subprocess.Process) -> int:
        watch = asyncio.ensure_future(self._watch_health(spec))
        exited = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({watch, exited}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                watch.result()  # it only ends by an error
            return exited.result()
        finally:
            for task in (watch, exited):
                task.cancel()
            await asyncio.gather(watch, exited, return_exceptions=True)

    async def _watch_health(self, spec: ProcessSpec) -> None:
        probe = HealthProbe(spec)
        try:
            while True:
                healthy = await probe.ready()
                if self._table.probed(spec.name, healthy, time.monotonic()):
                    again = "is ready again" if healthy else "is not ready any more"
                    self._changed(f"{spec.name} {again}" if self._up.is_set() and not self._stop.is_set() else "")
                    if self._table.all_serving():
                        self._up.set()
                await asyncio.sleep(PROBE_SERVING_S if healthy else PROBE_S)
        finally:
            await probe.close()

    async def _after_exit(self, spec: ProcessSpec, code: int) -> None:
        ended = how_it_ended(code)
        decision = self._table.exited(spec.name, time.monotonic())
        if isinstance(decision, GiveUp):
            times = self._table[spec.name].failures
            self._fail(f"{spec.name} {ended}, {times} times in a row before it was ever ready", spec.name)
            return
        note = f"{spec.name} {ended}, it starts again in {decision.after_s:g} s"
        log.warning(note, extra={"who": spec.name, "status": code, "after_s": decision.after_s})
        self._changed(note)
        try:
            async with asyncio.timeout(decision.after_s):
                await self._stop.wait()
        except TimeoutError:
            return

    def _fail(self, message: str, name: str) -> None:
        if self._failed is None and not self._stop.is_set():
            log.error(message, extra={"who": name})
            where = f"{message}. Its log: {self._state.log_path(name)}"
            self._failed = Failed(message=where, log=tuple(self._state.log_tail(name)))
            self._stop.set()

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_S)
            for spec in self._plan.processes:
                self._state.bound_log(spec.name)

    async def _stop_all(self) -> None:
        """SIGTERM role by role, each with a deadline, then SIGKILL to whole groups. A second signal skips the wait."""
        for role in STOP_ORDER:
            members = [
                process
                for spec in self._plan.processes
                if spec.role == role and (process := self._running.get(spec.name)) is not None
            ]
            families = [family(process.pid) for process in members]
            for process in members:
                if process.returncode is None:
                    process.terminate()
            await self._wait_for_exits(members)
            for process, others in zip(members, families, strict=True):
                if process.returncode is None:
                    log.warning("killed, it did not stop in time", extra={"pid": process.pid})
                kill_group(process.pid, others)

    async def _wait_for_exits(self, members: list[asyncio.subprocess.Process]) -> None:
        if not members:
            return
        insist = asyncio.ensure_future(self._insist.wait())
        exits = asyncio.ensure_future(_all_exited(members))
        await asyncio.wait({insist, exits}, timeout=KILL_AFTER_S, return_when=asyncio.FIRST_COMPLETED)
        for task in (insist, exits):
            task.cancel()
        await asyncio.gather(insist, exits, return_exceptions=True)

    def _changed(self, note: str = "") -> None:
        mesh = self._mesh()
        self._state.write_mesh(mesh)
        self._report(Changed(mesh=mesh, note=note))

    def _mesh(self) -> MeshState:
        return MeshState(
            pid=os.getpid(),
            created=created(os.getpid()) or 0.0,
            base_url=self._plan.base_url,
            grpc_target=self._plan.grpc_target,
            model=self._plan.model,
            engine=self._plan.engine,
            cache=self._plan.cache,
            processes=tuple(self._process_state(spec) for spec in self._plan.processes),
        )

    def _process_state(self, spec: ProcessSpec) -> ProcessState:
        row = self._table[spec.name]
        return ProcessState(
            role=spec.role,
            name=spec.name,
            pid=row.pid,
            address=spec.address,
            health=row.health.value,
            created=self._created.get(spec.name) if row.pid is not None else None,
            restarts=row.restarts,
        )


async def _all_exited(processes: list[asyncio.subprocess.Process]) -> None:
    for process in processes:
        await process.wait()

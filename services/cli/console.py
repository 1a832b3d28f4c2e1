"""How `penstock up` looks: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from rich.console import Console as RichConsole
from rich.live import Live
from rich.table import Table

from services.cli.banner import ready_text
from services.cli.report import Changed, Failed, Planned, Ready, Stopping
from services.cli.table import Health

if TYPE_CHECKING:
    from services.cli.state import MeshState, ProcessState

COLOURS = {
    Health.SERVING: "green", Health.STARTING: "yellow", Health.NOT_SERVING: "yellow", Health.DOWN: "red",
}  # fmt: skip
PROGRESS_S = 5.0
"""Between two signs of life when there is no terminal."""


class Console:
    """Shows the events of a supervisor. A `Reporter`; use as a context manager."""

    def __init__(self, *, detached: bool = False) -> None:
        self._rich = RichConsole(highlight=False, soft_wrap=True)
        self._detached = detached
        self._live: Live | None = None
        self._waiting_for: dict[str, str] = {}
        self._health: dict[str, str] = {}
        self._mesh: MeshState | None = None
        self._began = time.monotonic()
        self._done = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self.failed = False

    def __enter__(self) -> Self:
        if self._rich.is_terminal:
            self._live = Live(console=self._rich, refresh_per_second=4, get_renderable=self._table)
            self._live.start()
        else:
            self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._starting_over()

    def __call__(self, event: Planned | Changed | Ready | Stopping | Failed) -> None:
        """Show one event."""
        match event:
            case Planned():
                self._waiting_for = event.waiting_for
                for note in event.notes:
                    self._line(f"note: {note}")
            case Changed():
                self._changed(event)
            case Ready():
                self._starting_over()
                self._rich.print(ready_text(event, detached=self._detached), markup=True)
            case Stopping():
                self._line("stopping (once more: at once)")
            case Failed():
                self._starting_over()
                self.failed = True
                self._show_failure(event)

    def stopped(self) -> None:
        """Everything has ended, as it was told to."""
        self._line("Stopped.")

    def _changed(self, event: Changed) -> None:
        self._mesh = event.mesh
        if event.note:
            self._line(event.note)
        if self._live is None and not self._done.is_set():
            for process in event.mesh.processes:
                if self._health.get(process.name, Health.DOWN) != process.health:
                    self._health[process.name] = process.health
                    self._line(self._describe(process))

    def _describe(self, process: ProcessState) -> str:
        seconds = time.monotonic() - self._began
        if process.health == Health.SERVING:
            return f"{process.name:<10} ready at {process.address} after {seconds:.1f} s"
        if process.health == Health.STARTING:
            return f"{process.name:<10} {self._waiting_for.get(process.name, 'starting')} (pid {process.pid})"
        return f"{process.name:<10} {process.health}"

    def _tick(self) -> None:
        """Plain output: say who is being waited for, every few seconds."""
        while not self._done.wait(PROGRESS_S):
            late = [] if self._mesh is None else [p for p in self._mesh.processes if p.health != Health.SERVING]
            seconds = time.monotonic() - self._began
            for process in late:
                self._line(f"{process.name:<10} {self._waiting_for.get(process.name, 'starting')}, {seconds:.0f} s")

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for process in self._mesh.processes if self._mesh else ():
            colour = COLOURS.get(Health(process.health), "white")
            doing = process.health
            if process.health == Health.STARTING:
                doing = f"{self._waiting_for.get(process.name, 'starting')} {time.monotonic() - self._began:.0f} s"
            table.add_row(process.name, f"[{colour}]{doing}[/]", process.address, f"pid {process.pid or '-'}")
        return table

    def _line(self, text: str) -> None:
        self._rich.print(text, markup=False)

    def _show_failure(self, event: Failed) -> None:
        error = RichConsole(stderr=True, highlight=False, soft_wrap=True)
        error.print(f"[bold red]error:[/] {_escape(event.message)}")
        for line in event.log:
            error.print(f"  | {line}", markup=False)

    def _starting_over(self) -> None:
        """The start has ended: the table stands still, plain output stops ticking."""
        self._done.set()
        if self._live is not None:
            self._live.stop()
            self._live = None
        sys.stdout.flush()


def _escape(text: str) -> str:
    return text.replace("[", r"\[")

"""What the supervisor tells whoever watches it: a console, or the `penstock up --detach` that started it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from services.cli.state import MeshState


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True)


class Planned(_Event):
    """The mesh is about to start."""

    kind: Literal["planned"] = "planned"
    waiting_for: dict[str, str]
    """Process -> what it does until it is healthy."""
    notes: tuple[str, ...] = ()


class Changed(_Event):
    """The state of a process changed."""

    kind: Literal["changed"] = "changed"
    mesh: MeshState
    note: str = ""
    """Something worth a line, e.g. a restart."""


class Ready(_Event):
    """Everything serves (for the first time)."""

    kind: Literal["ready"] = "ready"
    mesh: MeshState
    api_key: str
    state_dir: Path
    seconds: float


class Stopping(_Event):
    """It was told to stop."""

    kind: Literal["stopping"] = "stopping"


class Failed(_Event):
    """It could not start, or not go on; everything is stopped."""

    kind: Literal["failed"] = "failed"
    message: str
    log: tuple[str, ...] = ()
    """Last lines of the log of the process at fault."""


Event = Annotated[Planned | Changed | Ready | Stopping | Failed, Field(discriminator="kind")]
EVENT: TypeAdapter[Planned | Changed | Ready | Stopping | Failed] = TypeAdapter(Event)


class Reporter(Protocol):
    """Takes events in order; must not block for long nor raise."""

    def __call__(self, event: Planned | Changed | Ready | Stopping | Failed) -> None:
        """Show it."""


class PipeReporter:
    """Writes events as JSON lines into a pipe until the mesh is up or has failed, then closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def __call__(self, event: Planned | Changed | Ready | Stopping | Failed) -> None:
        """See `Reporter`."""
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, event.model_dump_json().encode() + b"\n")
            done = isinstance(event, Ready | Failed)
        except BrokenPipeError:
            done = True  # the reader was stopped; the mesh goes on
        if done:
            os.close(self._descriptor)
            self._descriptor = None

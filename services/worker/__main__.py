"""`python -m services.worker`: the guardian first, then, in its child, everything else."""

from __future__ import annotations

import sys

from services.worker import guardian


def main() -> None:
    """Run a worker under its guardian."""
    guardian.guard()
    from services.common import logs, settings  # after the fork: the guardian stays tiny
    from services.common.card import CardError
    from services.worker import app
    from services.worker.engine.base import EngineStartError
    from services.worker.settings import WorkerSettings

    own, flags = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, flags = own[:at], own[at + 1 :]
    worker = settings.load(WorkerSettings, own, prog="python -m services.worker")
    logs.configure("worker", worker.log_level)
    try:
        app.run(worker, flags)
    except (CardError, EngineStartError, OSError) as error:
        sys.stderr.write(f"worker: {error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()

"""`python -m services.worker`: the guardian first, then, in its child, everything else."""

from __future__ import annotations

import logging
import os
import sys

from services.worker import guardian


def main() -> None:
    """Run a worker under its guardian."""
    scratch = guardian.guard()
    from services.common import logs, settings  # after the fork: the guardian stays tiny
    from services.worker import app
    from services.worker.settings import WorkerSettings

    own, flags = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, flags = own[:at], own[at + 1 :]
    worker = settings.load(WorkerSettings, own, prog="python -m services.worker")
    logs.configure("worker", worker.log_level)
    status = app.run(worker, flags, scratch)
    # Not by way of the engine's exit handlers: vLLM's wait 5 s for its children. The guardian ends them.
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()

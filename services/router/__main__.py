"""`python -m services.router`."""

from __future__ import annotations

import sys

from services.common import lifecycle, logs
from services.common.settings import load
from services.router.app import Router
from services.router.settings import RouterSettings


def main() -> None:
    """Run the router until SIGTERM."""
    settings = load(RouterSettings, sys.argv[1:], prog="python -m services.router")
    logs.configure(settings.name or "router", settings.log_level)
    lifecycle.run(Router(settings), drain_s=settings.drain_s, announce_to=settings.announce)


if __name__ == "__main__":
    main()

"""`python -m services.gateway`: the edge of the mesh."""

from __future__ import annotations

import gc
import sys

from services.common import lifecycle, logs
from services.common.settings import load
from services.gateway.app import Gateway
from services.gateway.settings import GatewaySettings


def main() -> None:
    """Run a gateway until SIGTERM."""
    settings = load(GatewaySettings, sys.argv[1:], prog="services.gateway")
    logs.configure(settings.name or "gateway", settings.log_level)
    # Streams make much short-lived garbage without cycles; the modules loaded so far live for ever.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    lifecycle.run(Gateway(settings), drain_s=settings.drain_s, announce_to=settings.announce)


if __name__ == "__main__":
    main()

"""A process that pretends to be a gateway: `python fake.py PORT [deaf] [orphan FILE] [fail]`.

deaf: ignores SIGTERM. orphan: starts a child in a session of its own and writes its pid to FILE. fail: ends at once.
"""

from __future__ import annotations

import http.server
import signal
import subprocess
import sys
from pathlib import Path


class Handler(http.server.BaseHTTPRequestHandler):
    """Always ready."""

    def do_GET(self) -> None:
        """Answer any probe."""
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until told otherwise."""
    words = sys.argv[2:]
    if "fail" in words:
        sys.exit("no such thing as luck")
    if "deaf" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "orphan" in words:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        Path(words[words.index("orphan") + 1]).write_text(str(child.pid))
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()

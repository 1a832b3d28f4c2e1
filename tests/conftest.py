"""What every test takes for granted."""

from __future__ import annotations

import signal

# A shell that starts CI in the background has it ignore SIGINT, and what ignores a signal passes that on to every
# process it starts: the meshes of tests would not hear Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

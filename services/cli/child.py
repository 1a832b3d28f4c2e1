"""Runs a command that dies with its parent: `python -I -S child.py PARENT_PID COMMAND...`.

The kernel sends SIGKILL to a process with PR_SET_PDEATHSIG when the thread that started it ends (prctl(2); Linux only,
elsewhere the command just runs). It outlives exec, so this costs one short-lived interpreter and nothing after it.
Imports as little as it can: it stands between the supervisor and every process.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, make sure that the parent has not died before, become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.stderr.write(f"prctl failed: {os.strerror(ctypes.get_errno())}\n")
            sys.exit(1)
        if os.getppid() != parent:
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()

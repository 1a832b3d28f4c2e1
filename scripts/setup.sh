#!/usr/bin/env bash
# Finds a Python 3.11+ and lets scripts/setup.py build .venv with it. PYTHON=/path/to/python chooses one.
set -euo pipefail
cd "$(dirname "$0")/.."

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

if [ -n "${PYTHON:-}" ]; then
  usable "$PYTHON" || { echo "setup: PYTHON=$PYTHON is not a working Python 3.11 or newer" >&2; exit 1; }
  exec "$PYTHON" scripts/setup.py "$@"
fi
for python in python3.11 python3.12 python3.13 python3 python; do
  usable "$python" && exec "$python" scripts/setup.py "$@"
done
cat >&2 <<'MESSAGE'
setup: Penstock needs Python 3.11 or newer, and none was found.
  Debian, Ubuntu:  sudo apt-get install python3 python3-venv
  Fedora:          sudo dnf install python3
  macOS:           brew install python@3.12
Or name one:       PYTHON=/path/to/python3.12 make setup
MESSAGE
exit 1

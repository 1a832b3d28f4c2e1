#!/usr/bin/env bash
# Ruff, mypy --strict, import-linter. All of them run; the status is that of the worst.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
bad=0
for check in "ruff check ." "ruff format --check ." "mypy" "lint-imports"; do
  printf -- '-- %s\n' "$check"
  # shellcheck disable=SC2086 - words on purpose
  $bin/$check || bad=1
done
exit $bad

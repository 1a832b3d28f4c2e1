#!/usr/bin/env bash
# Lint, then the tests in stages, the quick ones first. Stops at the first stage that fails.
# Arguments go to every pytest run, e.g. scripts/test.sh -x -k cache.
set -euo pipefail
cd "$(dirname "$0")/.."

began=$SECONDS
passed=()

stage() {
  local name=$1 from=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  if ! "$@"; then
    printf '\nFAILED: %s, after %d s. Passed before it: %s. Again, alone: %s\n' \
      "$name" $((SECONDS - from)) "${passed[*]:-nothing}" "$*" >&2
    exit 1
  fi
  passed+=("$name ($((SECONDS - from)) s)")
}

tests() { .venv/bin/python -m pytest "$@"; }

stage "lint" scripts/lint.sh
stage "unit" tests tests/unit tests/contract "$@"
stage "integration" tests tests/integration "$@"
stage "end-to-end" tests tests/e2e "$@"
stage "vllm" tests tests/vllm "$@"

printf '\nAll passed in %d s: %s.\nNext: make up (vLLM) or make up ENGINE=sim, then penstock chat.\n' \
  $((SECONDS - began)) "$(printf '%s, ' "${passed[@]}" | sed 's/, $//')"

#!/usr/bin/env bash
# Generates the committed protobuf, gRPC and FlatBuffers code. `scripts/gen.sh OUT` writes elsewhere (drift test).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-protos}
python=${PYTHON:-.venv/bin/python}
bin=$(dirname "$("$python" -c 'import sys; print(sys.executable)')")
mkdir -p "$out"
"$python" -m grpc_tools.protoc -Iprotos \
  --plugin=protoc-gen-mypy="$bin/protoc-gen-mypy" --plugin=protoc-gen-mypy_grpc="$bin/protoc-gen-mypy_grpc" \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" \
  protos/penstock/v1/*.proto
if ! command -v flatc >/dev/null; then
  echo "flatc is missing: apt-get install flatbuffers-compiler (the FlatBuffers code was left as it is)" >&2
  exit 3
fi
flatc --python -o "$out" protos/frames.fbs
touch "$out/penstock/__init__.py" "$out/penstock/v1/__init__.py" "$out/penstock/fb/__init__.py"

# Everything a person or CI does here. `make` lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin

ENGINE ?= vllm
MODEL ?=
WORKERS ?= 1
GATEWAYS ?= 1
ROUTERS ?= 1
TP ?= 1
HTTP_PORT ?= 8000
GRPC_PORT ?= 8001
STATE_DIR ?= .penstock
DETACH ?=
ARGS ?=

UP := --engine $(ENGINE) --workers $(WORKERS) --gateways $(GATEWAYS) --routers $(ROUTERS) \
  --tensor-parallel-size $(TP) --http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) --state-dir $(STATE_DIR) \
  $(if $(MODEL),--model $(MODEL)) $(if $(filter-out 0,$(DETACH)),--detach) $(ARGS)

.PHONY: help setup up down status chat test lint format gen bench bench-token bench-ttft bench-memory bench-router bench-cache clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make up takes ENGINE=vllm|sim MODEL=DIR_OR_ID WORKERS GATEWAYS ROUTERS TP HTTP_PORT GRPC_PORT STATE_DIR"
	@echo "  DETACH=1 ARGS='-- vLLM flags', e.g.: make up ENGINE=sim WORKERS=2"

setup: ## build .venv with all that development needs (no vLLM: `make up` and `make test` add it)
	@scripts/setup.sh --extra dev
	@echo "Ready. Next: make up (vLLM), make up ENGINE=sim (no GPU, no torch), make test"

up: ## set up what is missing and start the mesh
	@scripts/setup.sh --extra all --engine $(ENGINE)
	@exec $(BIN)/penstock up $(UP)

down: ## stop the mesh
	@scripts/setup.sh --extra all
	@$(BIN)/penstock down --state-dir $(STATE_DIR)

status: ## show what runs
	@scripts/setup.sh --extra all
	@$(BIN)/penstock status --state-dir $(STATE_DIR)

chat: ## talk to the running model
	@scripts/setup.sh --extra all
	@exec $(BIN)/penstock chat --state-dir $(STATE_DIR)

test: ## lint and every test, vLLM on the CPU included
	@scripts/setup.sh --extra dev --engine vllm
	@scripts/test.sh

lint: ## ruff, mypy --strict, import contracts
	@scripts/setup.sh --extra dev
	@scripts/lint.sh

format: ## let ruff rewrite what it can
	@scripts/setup.sh --extra dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

gen: ## generate the protobuf and FlatBuffers code
	@scripts/setup.sh --extra dev
	scripts/gen.sh

bench: bench-token bench-ttft bench-memory bench-router bench-cache ## all benchmarks, one after the other

bench-token: ## CPU of gateway and workers per streamed token, beside Envoy
	@scripts/setup.sh --extra dev --extra bench
	$(BIN)/python -m bench.token $(ARGS)

bench-ttft: ## time to first token that the mesh adds over the worker
	@scripts/setup.sh --extra dev --extra bench
	$(BIN)/python -m bench.ttft $(ARGS)

bench-memory: ## memory of gateway and router after 2,000 and 20,000 requests
	@scripts/setup.sh --extra dev --extra bench
	$(BIN)/python -m bench.memory $(ARGS)

bench-router: ## CPU of the router per request
	@scripts/setup.sh --extra dev --extra bench
	$(BIN)/python -m bench.router $(ARGS)

bench-cache: ## a response cache hit, from the process and from Redis
	@scripts/setup.sh --extra dev --extra bench
	$(BIN)/python -m bench.cache $(ARGS)

clean: ## remove .venv and every cache (not .penstock: that is the mesh's state)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

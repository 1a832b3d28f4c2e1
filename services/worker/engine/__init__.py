"""Engines: the interface (`base`), the simulator (`sim_core`, `sim`) and vLLM (`vllm`)."""

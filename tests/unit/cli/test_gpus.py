"""Which worker gets which GPUs or cores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.errors import CliError
from services.cli.gpus import assign_cores, assign_gpus, choose_visible

TWO = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555555)
  MIG 1g.10gb     Device  0: (UUID: MIG-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-66666666-7777-8888-9999-000000000000)
"""


@pytest.mark.parametrize(
    ("listing", "cuda_visible_devices", "expected"),
    [
        (TWO, None, ["0", "1"]),
        (TWO, "1", ["1"]),
        (TWO, "1,0", ["1", "0"]),
        (TWO, " 1 , GPU-11111111 ", ["1", "GPU-11111111"]),
        (TWO, "", []),
        (TWO, "-1", []),
        (TWO, "0,7,1", ["0"]),
        ("", None, []),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "0", []),
    ],
)
def test_cuda_visible_devices_narrows_what_nvidia_smi_lists(
    listing: str, cuda_visible_devices: str | None, expected: list[str]
) -> None:
    assert choose_visible(listing, cuda_visible_devices) == expected


def test_workers_get_disjoint_gpus() -> None:
    gpus = [str(index) for index in range(8)]
    assert assign_gpus(gpus, workers=2, tensor_parallel=2, pipeline_parallel=2) == ["0,1,2,3", "4,5,6,7"]


def test_too_few_gpus_are_counted() -> None:
    with pytest.raises(CliError, match=r"2 workers x TP 2 x PP 1 need 4 GPUs, this machine has 2 "):
        assign_gpus(["0", "1"], workers=2, tensor_parallel=2, pipeline_parallel=1)
    with pytest.raises(CliError, match=r"1 worker x TP 1 x PP 1 need 1 GPU, this machine has 0 "):
        assign_gpus([], workers=1, tensor_parallel=1, pipeline_parallel=1)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 8), st.integers(1, 4))
def test_no_gpu_is_given_twice(count: int, workers: int, tensor_parallel: int, pipeline_parallel: int) -> None:
    gpus = [str(index) for index in range(count)]
    each = tensor_parallel * pipeline_parallel
    if workers * each > count:
        with pytest.raises(CliError):
            assign_gpus(gpus, workers=workers, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel)
        return
    shares = assign_gpus(gpus, workers=workers, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel)
    given_out = [gpu for share in shares for gpu in share.split(",")]
    assert [len(share.split(",")) for share in shares] == [each] * workers
    assert len(set(given_out)) == len(given_out)


@pytest.mark.parametrize(
    ("cores", "workers", "tensor_parallel", "expected"),
    [
        ([0, 1], 1, 1, ["0"]),  # one is left to the gateway
        ([0, 1], 2, 1, ["0", "1"]),
        ([0, 1], 1, 2, ["0|1"]),
        (list(range(8)), 1, 1, ["0-6"]),
        (list(range(8)), 2, 2, ["0|1", "2|3"]),
        ([0, 1, 2, 4, 5, 6, 8], 2, 1, ["0-2", "4-6"]),
        ([3], 1, 1, ["3"]),
    ],
)
def test_ranks_get_disjoint_cores(cores: list[int], workers: int, tensor_parallel: int, expected: list[str]) -> None:
    assert assign_cores(cores, workers=workers, tensor_parallel=tensor_parallel) == (expected, "")


def test_too_few_cores_are_shared_and_said_so() -> None:
    bindings, note = assign_cores([0, 1], workers=2, tensor_parallel=2)
    assert bindings == ["0|1", "0|1"]
    assert "4 model processes share 2 cores" in note

"""An environment without any launcher."""

from __future__ import annotations

import os
import re

import pytest

_OF_LAUNCHERS = re.compile(
    r"TF_CONFIG|(SLURM|OMPI|PMIX|TORCHELASTIC|TPU|KUBE|GCE|CUDA_VISIBLE)\w*|(LOCAL_)?(RANK|WORLD_SIZE)"
    r"|MASTER_(ADDR|PORT)|JAX_(COORDINATOR_ADDRESS|NUM_PROCESSES|PROCESS_ID|LOCAL_DEVICE_IDS)"
    r"|JOB_COMPLETION_INDEX|\w+_proxy",
    re.IGNORECASE,
)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if _OF_LAUNCHERS.fullmatch(variable):
            monkeypatch.delenv(variable)

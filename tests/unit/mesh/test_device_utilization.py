"""How busy GPUs are: the interface of the driver, built as a library that answers like it."""

import shutil
import subprocess

import pytest

from stratagem._src.mesh import device_utilization
from stratagem._src.mesh.device_utilization import DeviceUtilization

DRIVER = """
#include <string.h>
static int opened;
static const unsigned busy[] = {10, 20, 60};
typedef struct { unsigned gpu, memory; } rates;
int nvmlInit_v2(void) { opened = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, const unsigned **device) {
    if (!opened || index > 2) return 2;
    *device = &busy[index];
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *name, const unsigned **device) {
    if (strcmp(name, "GPU-8a")) return 6;
    *device = &busy[2];
    return 0;
}
int nvmlDeviceGetUtilizationRates(const unsigned *device, rates *found) {
    if (device == &busy[0]) return 3; /* as for a part of a GPU */
    found->gpu = *device;
    found->memory = 99;
    return 0;
}
"""


class Backend:
    platform = "cuda"

    def local_device_count(self):
        return 2


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setattr(device_utilization, "running_backends", lambda: [Backend()])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def driver(gpus, monkeypatch, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "driver.c", tmp_path / "libnvidia-ml.so.1"
    source.write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    monkeypatch.setattr(device_utilization, "_LIBRARY", str(library))


@pytest.mark.parametrize(
    ("visible", "metrics"),
    [
        ("1,2", {"utilization": 0.4}),
        ("1,GPU-8a", {"utilization": 0.4}),
        ("1", {"utilization": 0.2}),
        ("0,1", {"utilization": 0.2}),  # nothing is known of the first
        ("0", {}),
        ("9,GPU-unknown", {}),
    ],
)
def test_the_gpus_of_this_process_count(driver, monkeypatch, visible, metrics):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    utilization = DeviceUtilization()
    assert utilization.metrics() == pytest.approx(metrics)
    assert utilization.metrics() == pytest.approx(metrics)  # again, with the same handles


def test_without_the_variable_all_count(driver):
    assert DeviceUtilization().metrics() == {"utilization": 0.2}


def test_without_a_driver_nothing_is_told(gpus, monkeypatch):
    monkeypatch.setattr(device_utilization, "_LIBRARY", "libno-such-driver.so.1")
    assert DeviceUtilization().metrics() == {}


def test_a_cpu_tells_nothing():
    assert DeviceUtilization().metrics() == {}

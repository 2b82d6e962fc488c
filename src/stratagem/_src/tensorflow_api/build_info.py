"""``tf.version``, ``tf.sysconfig`` and ``tf.test``: versions and available hardware."""

from __future__ import annotations

import jax

from stratagem._src.core.version import __version__
from stratagem._src.mesh.devices import canonical_name

__all__ = [
    "COMPILER_VERSION",
    "GIT_VERSION",
    "VERSION",
    "get_build_info",
    "gpu_device_name",
    "is_built_with_cuda",
    "is_built_with_gpu_support",
    "is_built_with_rocm",
    "is_built_with_xla",
    "is_gpu_available",
]

VERSION = "2.21.0"
"""The TensorFlow version that this API follows; the library's own version is ``tf.__version__``."""
GIT_VERSION = f"stratagem-{__version__}"
COMPILER_VERSION = f"jax-{jax.__version__}"


def _gpus() -> list[jax.Device]:
    return [device for device in jax.local_devices() if device.platform in ("gpu", "cuda", "rocm")]


def get_build_info() -> dict[str, bool]:
    """Returns whether programs can run on NVIDIA or AMD GPUs.

    >>> get_build_info()["is_tensorrt_build"]
    False
    """
    return {
        "is_cuda_build": is_built_with_cuda(),
        "is_rocm_build": is_built_with_rocm(),
        "is_tensorrt_build": False,
    }


def is_built_with_cuda() -> bool:
    """Returns whether JAX found NVIDIA GPUs.

    >>> is_built_with_cuda() in (True, False)
    True
    """
    return any("cuda" in device.client.platform_version.lower() for device in _gpus())


def is_built_with_rocm() -> bool:
    """Returns whether JAX found AMD GPUs.

    >>> is_built_with_rocm() in (True, False)
    True
    """
    return any("rocm" in device.client.platform_version.lower() for device in _gpus())


def is_built_with_gpu_support() -> bool:
    """Returns whether JAX found GPUs.

    >>> is_built_with_gpu_support() in (True, False)
    True
    """
    return bool(_gpus())


def is_built_with_xla() -> bool:
    """Returns ``True``.

    >>> is_built_with_xla()
    True
    """
    return True


def is_gpu_available(
    cuda_only: bool = False, min_cuda_compute_capability: tuple[int, int] | None = None
) -> bool:
    """Returns whether there is a GPU.

    >>> is_gpu_available() in (True, False)
    True
    """
    return is_built_with_cuda() if cuda_only else bool(_gpus())


def gpu_device_name() -> str:
    """Returns the name of the first GPU, or an empty string.

    >>> isinstance(gpu_device_name(), str)
    True
    """
    gpus = _gpus()
    return (
        f"/device:{canonical_name(gpus[0]).rpartition(':')[0].rpartition(':')[2]}:0" if gpus else ""
    )

"""``TPUSystemMetadata``: the number of cores and hosts of a TPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratagem._src.cluster.errors import CloudError

if TYPE_CHECKING:
    import jax

__all__ = ["TPUSystemMetadata", "attached_devices"]


@dataclass(frozen=True)
class TPUSystemMetadata:
    """Metadata of the TPUs that JAX sees on all hosts.

    A core is a JAX device. The topology is ``None``, as in TensorFlow unless it is requested: use the
    ``coords`` of each device.

    >>> from stratagem.tpu.experimental import TPUSystemMetadata
    >>> TPUSystemMetadata.of_devices([]).num_cores
    0
    """

    num_cores: int
    num_hosts: int
    num_of_cores_per_host: int
    topology: None
    devices: tuple[jax.Device, ...]

    @classmethod
    def of_devices(cls, devices: Sequence[jax.Device]) -> TPUSystemMetadata:
        """Returns the metadata of devices.

        Raises:
            CloudError: If hosts differ in their number of devices.
        """
        per_host = Counter(device.process_index for device in devices)
        if len(set(per_host.values())) > 1:
            raise CloudError(
                f"Every TPU host must have the same number of cores, got {dict(per_host)} by host."
            )
        return cls(
            num_cores=len(devices),
            num_hosts=len(per_host),
            num_of_cores_per_host=max(per_host.values(), default=0),
            topology=None,
            devices=tuple(devices),
        )


def attached_devices(platform: str) -> list[jax.Device]:
    """Returns the devices of a platform on all hosts. It starts the JAX backend.

    Raises:
        CloudError: If this machine has none.
    """
    import jax  # imported here, because importing this package must not import JAX

    try:
        return jax.devices(platform)
    except RuntimeError as error:
        raise CloudError(
            f"JAX must find a {platform.upper()} on this machine, got: {error}. Run on a machine "
            "that has one, with the JAX build for it."
        ) from None

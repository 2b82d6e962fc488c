"""The meeting point under a JAX that has no coordination service to host."""

import jaxlib._jax

from stratagem._src.control_plane.membership_server import main

del jaxlib._jax.get_distributed_runtime_service
main()

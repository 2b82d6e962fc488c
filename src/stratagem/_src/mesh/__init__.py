"""The devices of a program: replicas, their logical devices, TPU topologies, and programs in flight."""

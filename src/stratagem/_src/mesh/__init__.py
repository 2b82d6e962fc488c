"""The devices of a program: replica groups, logical devices, TPU topologies, and the dispatch queue."""

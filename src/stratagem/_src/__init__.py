"""The private packages behind the public modules, without promises; docs/architecture.md has the map."""

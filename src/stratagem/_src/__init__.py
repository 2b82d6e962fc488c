"""The rooms behind the public doors. Nothing here is a promise; CONTRIBUTING.md has the map."""

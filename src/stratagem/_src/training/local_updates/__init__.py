"""Islands: groups of workers in sync within a group, and loosely coupled between groups."""

"""Programs that use remote variables: fetches before a step, updates after it."""

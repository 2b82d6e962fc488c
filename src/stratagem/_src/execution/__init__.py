"""``function``: tracing, building, caching and running of compiled programs."""

"""Client side of parameter servers: remote variables and the connections to their servers."""

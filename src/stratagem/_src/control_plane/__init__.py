"""Where the workers of a synchronous job meet: roll call, liveness, and what they agree on."""

"""Values that live on several replicas: per-replica values, mirrored values, variables."""

"""Values that live on several replicas: per-replica and mirrored values, merging and selecting."""

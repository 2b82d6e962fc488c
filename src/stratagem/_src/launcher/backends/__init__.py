"""The back ends that run a job: one per file, all with the same job description."""

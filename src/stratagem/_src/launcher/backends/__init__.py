"""Where a job runs: one back end in each file, all for the same job description."""

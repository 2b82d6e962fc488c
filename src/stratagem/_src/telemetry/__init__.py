"""What a task measures about itself, monitoring of jobs, and TensorBoard summaries."""

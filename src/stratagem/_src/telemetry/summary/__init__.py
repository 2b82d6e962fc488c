"""Numbers and pictures of a training run, in the files that TensorBoard shows."""

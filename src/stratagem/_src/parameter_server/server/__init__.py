"""A parameter server's side: what it holds, and what it does with it."""

"""``sg.profiler``: profiles all processes of a job on one timeline."""

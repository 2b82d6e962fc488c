"""``sg.profiler``: what all processes of a job do, recorded and put on one time line."""

"""Ray: a function in actors that are the tasks of a cluster, and Ray Data as their input."""

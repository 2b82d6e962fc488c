"""Starting the processes of a cluster, watching them, and ending them."""

"""Where islands meet: the outer rounds, and the server that averages what islands contribute."""

"""Variables that live on parameter servers: what a server holds, and how it is reached."""

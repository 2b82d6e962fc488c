"""What a coordinator and a worker say to each other, and what travels between them."""

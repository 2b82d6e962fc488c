"""A client's side: variables that live on parameter servers, and the way there."""

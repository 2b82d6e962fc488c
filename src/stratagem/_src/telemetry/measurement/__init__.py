"""What a task measures of itself while it is observed: its steps, and where their time goes."""

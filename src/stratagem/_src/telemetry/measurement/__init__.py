"""The measurements of a monitored task: its steps, and where their time goes."""

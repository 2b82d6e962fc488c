"""What is current in a thread, and what the rooms below the strategies may ask of it."""

"""What workers on one machine exchange through memory that they share."""

"""What a computation will read, and the memory it will take."""

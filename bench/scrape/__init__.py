"""What reading the engines' metrics costs: the router, and the engines."""

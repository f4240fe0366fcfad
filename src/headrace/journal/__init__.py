"""What is kept of requests while they run, so that they go on after the server was killed."""

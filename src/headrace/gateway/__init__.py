"""Which target answers a request, and what happens where one does not: routes, attempts, breakers."""

"""What engine events say about speed and use: counted as they pass, shown when a scraper asks."""

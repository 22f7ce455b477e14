"""Files behind URLs: stores, requests with retries, and cached blocks."""

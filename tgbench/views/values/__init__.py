"""What a view shows, as plain data; tested without a browser."""

"""Views: values in, pictures out. The payloads are plain data, tested without a browser."""

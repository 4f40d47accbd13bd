"""What the project promises, looked for until enough was seen: `make trust SECONDS=3600`."""

"""What everything stands on: numbers, files, words; nothing here knows of graphs."""

"""What a queue costs whose messages are not alike, however deep it is."""

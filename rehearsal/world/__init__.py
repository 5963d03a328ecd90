"""The private network and the disk that a rehearsal happens in, from its birth to its clean death."""

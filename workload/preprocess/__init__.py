"""Raw text in a bucket or folder, by Spark, into the token files that the trainer reads."""

VERSION = 1  # of what the same inputs and settings become; part of each run's id

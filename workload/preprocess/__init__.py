"""Conversion of raw text in a bucket or folder into the trainer's token files, by Spark."""

VERSION = 1  # of the output for given inputs and settings; part of each run's id

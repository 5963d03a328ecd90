"""Runs from submitted text to a training job: what the pipeline's function runs, and `tpu pipeline` shows.

A run is one record in the controllers' bucket. `decide` chooses the next action by the record and by the
state of batch and training, without I/O; `sweep` carries actions out.
"""

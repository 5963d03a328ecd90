"""The tpu layer."""

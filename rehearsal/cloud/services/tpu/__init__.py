"""The Cloud TPU API and the life of its nodes."""

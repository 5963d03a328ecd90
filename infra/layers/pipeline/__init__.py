"""The pipeline layer."""

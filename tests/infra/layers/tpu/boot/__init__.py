"""The boot script and workload.host, run for real where that takes root."""

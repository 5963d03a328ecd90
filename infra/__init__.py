"""The Pulumi program: layers of infrastructure for Cloud TPU v6e, one stack each."""

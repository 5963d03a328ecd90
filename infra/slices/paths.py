"""Key paths of `tpu:slices` that rules of several layers read: where slices are, and how many hosts there."""

ZONES = ("tpu:slices[].zones", "tpu:slices[].fallbackZones", "tpu:zones")
HOSTS = (*ZONES, "tpu:slices[].acceleratorType", "tpu:slices[].topology", "tpu:slices[].count")

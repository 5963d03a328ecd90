"""Print the commands that make the table of the provider's declarations again."""

import json

from rehearsal.providers.gcp.terraform import TABLE
from tools.provider_schema import command

print("mkdir -p cmd/provider_schema && cp tools/provider_schema/main.go cmd/provider_schema/")
print(f"{command(json.loads(TABLE.read_text()))} > {TABLE.name}")

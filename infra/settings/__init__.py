"""Language of settings: schema, rules, parser and YAML. Knows no layer."""

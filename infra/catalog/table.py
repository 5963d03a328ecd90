"""`python -m infra.catalog.table`: what each size of v6e costs an hour, as a Markdown table."""

from infra.catalog import CATALOG

REGION = "us-east5"


def table(region: str = REGION) -> str:
    """One line for each type; US dollars an hour for the whole slice in `region`."""
    price = CATALOG.prices[region]
    lines = [
        f"US dollars an hour in {region}, chip prices read {CATALOG.prices_read} ({CATALOG.prices_source}).",
        "",
        "| type | topology | hosts | on demand | spot | flex-start |",
        "| --- | --- | --: | --: | --: | --: |",
    ]
    for kind in CATALOG.types:
        costs = (price.on_demand, price.spot, price.flex_start)
        cells = ["unknown" if each is None else f"{kind.chips * each:,.2f}" for each in costs]
        lines.append(f"| {kind.name} | {kind.topology} | {kind.hosts} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())

"""Pages, line charts and text tables in one look. Imports none of the other packages."""

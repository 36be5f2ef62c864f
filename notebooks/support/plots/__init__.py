"""The pictures of the lessons, with one module per subject. Functions return a matplotlib Figure and import no DGL."""

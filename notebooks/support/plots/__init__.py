"""Every picture that a lesson shows; one module per subject. Functions return a matplotlib Figure and import no DGL."""

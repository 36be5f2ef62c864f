"""Every picture that a lesson shows; one module per subject. Functions return a matplotlib Figure and import no DGL."""

from support.plots.standalone import loss_curve, mini_batch, standalone_and_distributed

__all__ = ["loss_curve", "mini_batch", "standalone_and_distributed"]

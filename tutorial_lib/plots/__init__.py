"""Every picture that a lesson shows; one module per subject. Functions return a matplotlib Figure and import no DGL."""

from tutorial_lib.plots.standalone import loss_curve, mini_batch, standalone_and_distributed

__all__ = ["loss_curve", "mini_batch", "standalone_and_distributed"]

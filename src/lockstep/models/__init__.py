"""Networks, and the loss, metrics and learning rates they are trained with: knows no data set."""

"""What happens around the steps of a training: records, the console, stopping, a guard on the loss."""

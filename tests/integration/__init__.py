"""Several ranks compute what one would."""

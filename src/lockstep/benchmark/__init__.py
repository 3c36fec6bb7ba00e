"""`lockstep benchmark`: compares the speed of one training in several environments."""

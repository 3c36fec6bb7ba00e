"""`lockstep benchmark`: does the same training in several environments, and says whether more workers pay."""

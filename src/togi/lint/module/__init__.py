"""Module rules: one forward pass observed operation by operation, and the captured graph where there is one."""

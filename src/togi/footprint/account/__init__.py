"""The account of a run's memory: the peak, its moment, who owns it, and what could be let go earlier."""

"""Where the memory of a run went: the peak, its moment, who owns it, and what could be let go earlier."""

"""Keep a call within a budget of memory, and code free of hooks that nobody asked for."""

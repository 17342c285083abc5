"""The machine that measures: processor, memory, control group, allocators. No torch: the parent asks it too."""

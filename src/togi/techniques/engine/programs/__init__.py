"""The programs that engines make of a candidate. They import torch and backends; the techniques themselves do not."""

"""What engines make of a candidate. These files import torch and backends; the techniques beside this folder do not."""

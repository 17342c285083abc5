"""Lower precision, in torch and in engines' own forms. These files import torch and backends."""

# another library
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def load(name):
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    return AutoModelForCausalLM.from_pretrained(name, quantization_config=config)

# transformers' generate runs under no_grad by itself
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2").to("cuda")

answers = []
for prompt in open("prompts.txt"):
    ids = tokenizer(prompt, return_tensors="pt").input_ids.to("cuda", non_blocking=True)
    answers.append(model.generate(ids, max_new_tokens=32))

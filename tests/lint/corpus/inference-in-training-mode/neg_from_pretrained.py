# from_pretrained returns the model in eval mode
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("distilbert-base-uncased")
model = AutoModelForSequenceClassification.from_pretrained("distilbert-base-uncased")


@torch.no_grad()
def predict(texts):
    results = []
    for text in texts:
        encoded = tokenizer(text, return_tensors="pt")
        results.append(model(**encoded).logits.argmax(-1))
    return results

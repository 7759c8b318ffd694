"""A transformer of Hugging Face on texts of several lengths from a DataLoader, then MI on shuffled text."""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

import greedy_ensembles as ge

# Texts of 6 to 10 tokens that count down (label 0) or up (label 1); token 0 is padding.
steps = [torch.arange(6 + k % 5) * (1 if k % 2 else -1) for k in range(400)]
texts = [{"input_ids": 12 + 3 * (k % 7) + step, "labels": k % 2} for k, step in enumerate(steps)]


def collate(items: list[dict]) -> dict[str, torch.Tensor]:
    ids = pad_sequence([item["input_ids"] for item in items], batch_first=True)
    return {"input_ids": ids, "attention_mask": ids.ne(0).long(), "labels": torch.tensor([i["labels"] for i in items])}


def make_model() -> BertForSequenceClassification:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=16, **sizes))


loader, new = DataLoader(texts[:300], batch_size=25, shuffle=True, collate_fn=collate), collate(texts[300:])
p_star = ge.weighting.Shuffled(collate(texts[:300]))  # tokens of the texts, each in a position that it has in one
recipe = ge.Recipe(epochs=8, optimizer="adamw", lr=0.003)
ensemble = ge.fit(make_model, loader, size=3, weighting=p_star, strength=2.0, recipe=recipe, validation=0)
known, shuffled = (ensemble.uncertainty(x).epistemic.mean() for x in (new, p_star.sample(100, torch.Generator())))
print(f"mutual information: {known:.3f} nats on new texts, {shuffled:.3f} nats on shuffled ones")

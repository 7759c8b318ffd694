"""Hugging Face's Trainer: a subclass with one method couples its models; p* is text of random tokens."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import greedy_ensembles as ge

ids = torch.randint(1, 50, (64, 12), generator=torch.Generator().manual_seed(0))
data = [{"input_ids": row, "labels": (row[0] > 25).long()} for row in ids]
coupler = ge.Coupler(ge.weighting.Entries({"input_ids": ge.weighting.Tokens(50, 12)}), size=2, strength=3.0)


class CoupledTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **options):
        with coupler.step(model):
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
        loss = loss + coupler.term(model)  # which is 0 in evaluation
        return (loss, outputs) if return_outputs else loss


tiny = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
settings = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "learning_rate": 0.01}
members = [BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=2, **tiny)) for _ in range(2)]
for model in members:
    arguments = TrainingArguments("runs", num_train_epochs=10, per_device_train_batch_size=16, **settings)
    CoupledTrainer(model, arguments, train_dataset=data).train()
    coupler.add(model)
uncertainty = ge.Ensemble.from_members(members).uncertainty({"input_ids": torch.randint(1, 50, (100, 12))})
print(f"mutual information on random text: {uncertainty.epistemic.mean():.3f} nats")

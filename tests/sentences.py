"""A few sentences, and a model of them in the form of sentence-transformers."""

import torch
from torch import nn

ANCHORS = ["how tall is it", "who wrote this", "where is it", "what is a queue", "how tall is it"]
POSITIVES = ["two metres", "a poet", "in the north", "a line of keys", "about two metres"]
HARD = ["a tall tree", "she reads", "it is here", "two metres", "the north"]


class Words(nn.Module):
    """A model of their form: the mean of the vectors of words."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.vectors = nn.Embedding(64, 6).double()
        self.dropout = nn.Dropout(dropout)

    def __getitem__(self, place):
        return self

    def forward(self, features):
        mask = features["attention_mask"][:, :, None].double()
        vectors = self.dropout(self.vectors(features["input_ids"])) * mask
        return {"sentence_embedding": vectors.sum(dim=1) / mask.sum(dim=1)}


def tokens(sentences, spare=0):
    """Words as numbers, with padding at the end."""
    words = sorted({word for text in (*ANCHORS, *POSITIVES, *HARD) for word in text.split()})
    width = max(len(text.split()) for text in sentences) + spare
    rows = torch.zeros(len(sentences), width, dtype=torch.long)
    mask = torch.zeros_like(rows)
    for row, text in enumerate(sentences):
        for place, word in enumerate(text.split()):
            rows[row, place], mask[row, place] = words.index(word) + 1, 1
    return {"input_ids": rows, "attention_mask": mask}

"""Tiny modules that are no transformers classifier, and each one's forward with mixing written out by hand."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace

import reference
import torch
import torch.nn.functional as F
import transformers as tf
from torch import nn


def nowhere(point, x):
    return x


class TextEncoder(nn.Module):
    """nn.TransformerEncoder between an embedding and a head; torch's padding mask is true at padding."""

    def __init__(self, batch_first=True, norm_first=False, dropout=0.0):
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.places = nn.Parameter(torch.randn(12, 16) * 0.1)
        layer = nn.TransformerEncoderLayer(16, 2, 24, dropout, batch_first=batch_first, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)
        self.batch_first, self.norm_first = batch_first, norm_first

    def forward(self, tokens, padding=None):
        x = self.words(tokens) + self.places[: tokens.shape[1]]
        x = x if self.batch_first else x.transpose(0, 1)
        x = self.encoder(x, src_key_padding_mask=padding)
        x = x if self.batch_first else x.transpose(0, 1)
        return self.head(x.mean(1))

    def by_hand(self, mix, tokens, padding=None):
        """The same with `mix(point, x)`, x (B, T, d) or (B, d), at each point."""
        x = mix("embeddings", self.words(tokens) + self.places[: tokens.shape[1]])
        for layer in self.encoder.layers:

            def attend(y, layer=layer):
                y = y if self.batch_first else y.transpose(0, 1)
                y = layer.self_attn(y, y, y, key_padding_mask=padding, need_weights=False)[0]
                return y if self.batch_first else y.transpose(0, 1)

            def feed(y, layer=layer):
                return layer.linear2(F.relu(layer.linear1(y)))

            if self.norm_first:
                x = mix("attention", x + attend(layer.norm1(x)))
                x = x + feed(layer.norm2(x))
            else:
                x = mix("attention", layer.norm1(x + attend(x)))
                x = layer.norm2(x + feed(x))
            x = mix("block", x)
        return self.head(mix("sentence", x.mean(1)))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        rows, places, width = x.shape
        q, k, v = self.qkv(x).view(rows, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, places, width)
        return self.proj(x)


class TimmBlock(nn.Module):
    def __init__(self, width=16, dropout=0.0):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width, 2)
        self.ls1, self.drop_path1 = nn.Identity(), nn.Dropout(dropout)
        self.norm2, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width))

    def forward(self, x):
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x))))
        return x + self.mlp(self.norm2(x))


class TimmViT(nn.Module):
    """Laid out as timm's: blocks in an nn.Sequential, a class token, a norm and a head."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 16, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 16))
        self.pos_embed = nn.Parameter(torch.randn(1, 5, 16) * 0.1)
        self.blocks = nn.Sequential(*(TimmBlock(dropout=dropout) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def embed(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embed(x)))[:, 0])

    def by_hand(self, mix, x):
        x = mix("embeddings", self.embed(x))
        for block in self.blocks:
            x = mix("attention", x + block.attn(block.norm1(x)))
            x = mix("block", x + block.mlp(block.norm2(x)))
        return self.head(mix("sentence", self.norm(x)[:, 0]))


class EncoderBlock(nn.Module):
    def __init__(self, width=16, dropout=0.0):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.self_attention = nn.MultiheadAttention(width, 2, dropout=0.0, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Dropout(dropout), nn.Linear(24, width))

    def forward(self, input):
        x = self.ln_1(input)
        x, _ = self.self_attention(x, x, x, need_weights=False)
        x = self.dropout(x) + input
        return x + self.mlp(self.ln_2(x))


class TorchvisionViT(nn.Module):
    """Laid out as torchvision's: nn.MultiheadAttention in blocks of an ordered nn.Sequential, a head in another."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, 16, 4, 4)
        self.class_token = nn.Parameter(torch.randn(1, 1, 16))
        blocks = OrderedDict((f"encoder_layer_{i}", EncoderBlock(dropout=dropout)) for i in range(3))
        self.encoder = nn.Module()
        self.encoder.layers, self.encoder.ln = nn.Sequential(blocks), nn.LayerNorm(16)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(16, 3)))

    def embed(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], 1)

    def forward(self, x):
        return self.heads(self.encoder.ln(self.encoder.layers(self.embed(x)))[:, 0])

    def by_hand(self, mix, x):
        x = mix("embeddings", self.embed(x))
        for block in self.encoder.layers:
            y = block.ln_1(x)
            x = mix("attention", x + block.self_attention(y, y, y, need_weights=False)[0])
            x = mix("block", x + block.mlp(block.ln_2(x)))
        return self.heads.head(mix("sentence", self.encoder.ln(x)[:, 0]))


def tiny_bert():
    torch.manual_seed(7)
    shape = dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24)
    drop = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return tf.BertModel(tf.BertConfig(vocab_size=60, max_position_embeddings=40, **shape, **drop))


def bert_by_hand(bert, mix, ids, mask):
    """The hidden states of a BERT by the reference implementation, (B, T, d)."""
    whole = SimpleNamespace(bert=bert, config=bert.config)
    x = mix("embeddings", reference._embed(whole, ids, torch.zeros_like(ids)))
    for index in range(len(bert.encoder.layer)):
        x = reference._block(whole, index, x, mask.bool(), lambda point, _, y: mix(point, y))
    return x


class MeanPooled(nn.Module):
    """AutoModel, the mean over tokens, and a linear layer; nothing of it is a transformers classifier."""

    def __init__(self):
        super().__init__()
        self.body = tiny_bert()
        self.head = nn.Linear(16, 3)

    def forward(self, ids, real):
        hidden = self.body(input_ids=ids, attention_mask=real).last_hidden_state
        real = real.unsqueeze(-1).to(hidden.dtype)
        return {"prediction": self.head((hidden * real).sum(1) / real.sum(1))}

    def by_hand(self, mix, ids, real):
        hidden, weight = bert_by_hand(self.body, mix, ids, real), real.unsqueeze(-1).double()
        return self.head(mix("sentence", (hidden * weight).sum(1) / weight.sum(1)))

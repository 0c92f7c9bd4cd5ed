# SPDX-License-Identifier: Apache-2.0
"""A random tiny sentence encoder of BERT's shape, and what sentence-transformers says of it and of the real one.

usage: make_sentence_encoder.py [--real DIR] [OUT_DIR]        OUT_DIR: tests/model/sentence_encoder

Needs torch, transformers and sentence-transformers from PyPI, and the network only to install them:

    python3 -m venv v && v/bin/pip install torch==2.11.0 transformers==5.23.0 sentence-transformers
    v/bin/python models/reference/make_sentence_encoder.py --real .cache/all-minilm-l6-v2

OUT_DIR/tiny is a directory as sentence-transformers saves it; OUT_DIR/expected.safetensors holds
  tiny [texts, 24]           vectors by mean pooling, the texts cut at its max_seq_length
  tiny_first [texts, 24]     by the first token
  real [texts, 384]          of DIR, a copy of all-MiniLM-L6-v2 (scripts/sentence_encoder); kept as it is without --real
  real_long [texts, 384]     the same, the texts cut at 512 tokens instead of 256
all float32, and OUT_DIR/texts.json the texts.
"""
import argparse
import json
import pathlib
import shutil

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel

CORPUS = [
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
    "The pass key is 71432. Remember it. 71432 is the pass key. What is the pass key?",
    "Who closed the door? Prince Andrew went in to his father, and the old man did not look at him.",
    "caf\u00e9 na\u00efve \u00fcber 0123456789 abcdefghijklmnopqrstuvwxyz .,;:!?'\"()-",
]
TEXTS = [
    "", "a", "The pass key is 71432.", "What is the pass key?", "The grass is green. The sky is blue.",
    "Caf\u00e9 NA\u00cfVE \u4f60\u597d \U0001f600!", "Who closed the door?   Prince Andrew\n\nwent in.",
    " ".join(f"{i} Prince Andrew went in to his father, and the old man did not look at him." for i in range(30)),
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LONGEST = 32


def make_tokenizer():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=160, special_tokens=SPECIAL, show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    t.decoder = decoders.WordPiece()
    return t


def make_tiny(folder):
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "1_Pooling").mkdir(parents=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = BertConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=24, num_hidden_layers=2,
                        num_attention_heads=4, intermediate_size=36, max_position_embeddings=40)
    model = BertModel(config, add_pooling_layer=False).eval()
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        draw = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:  # words weigh more than places, so that texts with common words are near
            scale = {"word": 1.0, "posi": 0.3, "toke": 0.3}.get(name.split(".")[1][:4], 1.2 / parameter.shape[1] ** 0.5)
            parameter.data.copy_(draw * scale)
        elif name.endswith("bias"):
            parameter.data.copy_(0.2 * draw)
        else:
            parameter.data.add_(0.3 * draw)
    save_file({k: v.contiguous().numpy() for k, v in model.state_dict().items() if v.is_floating_point()},
              folder / "model.safetensors")
    keys = ["hidden_act", "hidden_size", "intermediate_size", "layer_norm_eps", "max_position_embeddings", "model_type",
            "num_attention_heads", "num_hidden_layers", "type_vocab_size", "vocab_size"]
    written = {k: getattr(config, k) for k in keys} | {"architectures": ["BertModel"]}
    write_json(folder / "config.json", written)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]",
                                                  "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]",
                                                  "mask_token": "[MASK]"})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False})
    prefix = "sentence_transformers.models."
    write_json(folder / "modules.json", [
        {"idx": 0, "name": "0", "path": "", "type": prefix + "Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": prefix + "Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": prefix + "Normalize"}])
    write_pooling(folder, first=False)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def write_pooling(folder, first):
    write_json(folder / "1_Pooling/config.json", {
        "word_embedding_dimension": 24, "pooling_mode_cls_token": first, "pooling_mode_mean_tokens": not first,
        "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False})


def vectors(folder, longest=None):
    model = SentenceTransformer(str(folder), device="cpu").double()
    if longest is not None:
        model.max_seq_length = longest
    # one by one: a batch is padded
    return np.stack([model.encode(t, convert_to_numpy=True, normalize_embeddings=True) for t in TEXTS]).astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("out", nargs="?", type=pathlib.Path, default=root / "tests/model/sentence_encoder")
    parser.add_argument("--real", type=pathlib.Path)
    args = parser.parse_args()
    tiny, file = args.out / "tiny", args.out / "expected.safetensors"
    expected = load_file(file) if file.exists() else {}
    make_tiny(tiny)
    write_pooling(tiny, first=True)
    expected["tiny_first"] = vectors(tiny)
    write_pooling(tiny, first=False)
    expected["tiny"] = vectors(tiny)
    if args.real:
        expected["real"] = vectors(args.real)
        expected["real_long"] = vectors(args.real, 512)
    save_file(expected, file)
    write_json(args.out / "texts.json", TEXTS)
    near = expected["tiny"] @ expected["tiny"][3]
    print({k: v.shape for k, v in expected.items()}, "cosines with text 3:", near.round(3).tolist())


main()

# SPDX-License-Identifier: Apache-2.0
"""Trains the model. Losses:

text   next token, weighted (answers 2, text 0.3-0.5, facts 0.1)
prev   a few heads of layers 0 and 1 keep looking a fixed number of tokens back; fades out over
       the first steps
point  two heads of the recall layers look at the token that is to be copied
event  the event that holds it wins the recall as the memory scores it, against the other events
       of the batch

Everything depends on the seed and the number of steps alone, nothing on the clock."""

import argparse
import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

from data import FIRST, INSIDE, Generator
from model import CONFIG, Llama, rot

LOOK_BACK = [(0, 0, 1), (0, 1, 2), (0, 2, 3), (1, 0, 4), (1, 1, 8)]  # layer, head, tokens back
RECALL = (2, 3)  # layers taught to recall
N_REPR = 4
WEIGHT = dict(prev=0.3, point=0.3, event=0.3)
PREV_STEPS, WARMUP, LOWEST = 200, 30, 0.03
LR_MATRIX, LR_EMBED, LR_NORM, DECAY = 0.015, 0.01, 0.003, 0.2


class Optimizer:
    """Muon for the matrices (momentum made orthogonal by five Newton-Schulz steps, in bfloat16),
    Adam for the rest."""

    def __init__(self, net):
        groups = {}
        for n, p in net.named_parameters():
            if p.dim() == 2 and "embed" not in n:
                groups.setdefault(tuple(sorted(p.shape)), []).append(p)
        self.groups = [(ps, [torch.zeros_like(p) for p in ps]) for ps in groups.values()]
        emb = [p for n, p in net.named_parameters() if "embed" in n]
        vec = [p for p in net.parameters() if p.dim() < 2]
        self.others = emb + vec
        self.adam = torch.optim.AdamW(
            [dict(params=emb, top=LR_EMBED), dict(params=vec, top=LR_NORM)],
            betas=(0.9, 0.97),
            weight_decay=0.0,
        )

    @torch.no_grad()
    def step(self, scale):
        torch.nn.utils.clip_grad_norm_(self.others, 1.0)
        for g in self.adam.param_groups:
            g["lr"] = g["top"] * scale
        self.adam.step()
        lr = LR_MATRIX * scale
        for ps, ms in self.groups:
            us = []
            for p, m in zip(ps, ms):
                m.lerp_(p.grad, 0.05)
                u = p.grad.lerp(m, 0.95)
                us.append(u.T if u.shape[0] > u.shape[1] else u)
            x = torch.stack(us)
            x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
            for _ in range(5):
                a = x @ x.transpose(1, 2)
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            for p, u in zip(ps, x.float()):
                p.mul_(1 - lr * DECAY)
                p.add_(
                    u.T if p.shape[0] > p.shape[1] else u,
                    alpha=-lr * max(1, p.shape[0] / p.shape[1]) ** 0.5,
                )


def event_loss(received, q, k, tab, angle, bad, copies, q0, size, off):
    """Cross-entropy of the event that holds the token to copy against all events of the batch;
    events are pieces of ``size`` tokens from ``off`` on, represented by the mean of the keys that
    received most attention. The query is that of one token or, for the first of a value,
    sometimes the mean over part of the question. -> loss, share won"""
    B, H, T, d = q.shape
    nb = (T - off) // size
    r = received.view(B, H, T)[..., off : off + nb * size].view(B, H, nb, size)
    top = r.topk(min(N_REPR, size), -1).indices + off + torch.arange(nb)[:, None] * size
    kk = k.repeat_interleave(H // k.shape[1], 1)
    rep = kk.gather(2, top.view(B, H, -1, 1).expand(-1, -1, -1, d)).view(B, H, nb, -1, d).mean(3)
    rep = rep.permute(0, 2, 1, 3).reshape(B * nb, H * d)
    qf = rot(q, tab[0][angle - 1], tab[1][angle - 1]).transpose(1, 2).reshape(B, T, H * d)
    total = torch.cat([torch.zeros(B, 1, H * d), qf.cumsum(1)], 1)
    b, pos, s1, s2, kind = copies
    n = torch.where(
        (kind == FIRST) & (torch.rand(len(b)) < 0.5),
        (torch.rand(len(b)) * (pos - q0[b] + 1).clamp(1, 48)).long() + 1,
        1,
    )
    n = torch.minimum(n, pos + 1)
    query = (total[b, pos + 1] - total[b, pos + 1 - n]) / n[:, None]
    score = query @ rep.T * d**-0.5
    start = (off + torch.arange(nb) * size).repeat(B)[None]
    mine = torch.arange(B).repeat_interleave(nb)[None] == b[:, None]
    holds = lambda s: (s[:, None] >= start) & (s[:, None] < start + size)
    gold = mine & (holds(s1) | holds(s2))
    # another row's fact might truly match
    unsure = bad[:, off : off + nb * size].view(B, nb, size).any(-1).reshape(-1)
    allowed = (~mine & ~unsure) | (mine & (start + size <= q0[b][:, None])) | gold
    has = gold.any(1) & (kind != INSIDE)
    if not has.any():
        return score.sum() * 0, 0.0
    score, gold = score.masked_fill(~allowed, -1e30)[has], gold[has]
    won = gold.gather(1, score.argmax(1, keepdim=True)).float().mean().item()
    return (score.logsumexp(1) - score.masked_fill(~gold, -1e30).logsumexp(1)).mean(), won


def random_drops(B, H, T, bad, q0, layers):
    """Far keys that are absent, in pieces: recall never brings everything back. The recall layers
    keep the facts."""
    piece = random.choice([8, 16, 32, 64])
    before = torch.arange(T)[None] < q0[:, None]
    out = []
    for l in range(layers):
        d = torch.rand(B, T // piece + 1) < torch.rand(B, 1) * 1.1
        d = d.repeat_interleave(piece, 1)[:, :T].clone()
        if l in RECALL:
            d &= ~(bad & before)
        out.append(d.repeat_interleave(H, 0))
    return out


def point_picks(copies, H, pointing):
    """What MemoryAttention shall report: the first heads' probabilities of the tokens to copy."""
    b, pos, s1, s2, _ = copies
    head = torch.arange(pointing)[:, None]
    where = torch.broadcast_tensors(b * H + head, pos, torch.stack([s1, s2])[:, None])
    return tuple(x.reshape(-1) for x in where)


def look_back_picks(layer, B, H, T):
    """The same for the heads that are to look a fixed number of tokens back."""
    row, pos = torch.arange(B)[:, None] * H, torch.arange(8, T)
    heads = [(h, back) for l, h, back in LOOK_BACK if l == layer]
    parts = [torch.broadcast_tensors(row + h, pos, pos - back) for h, back in heads]
    return tuple(torch.cat([x[i].reshape(-1) for x in parts]) for i in range(3))


def step_loss(net, batch, prev_weight):
    """-> loss of one batch, numbers for the log"""
    H, layers = net.c["num_attention_heads"], net.c["num_hidden_layers"]
    pointing = H // net.c["num_key_value_heads"]
    ids, w, bad, copies, q0 = batch
    B, T = ids.shape
    n_local = min(random.choice([T // 4, T // 2, 64, 96, 128, 192, 256, 256, 512]), T // 2)
    angle = random.choice([n_local] * 3 + [128] * 2 + [256] * 8 + [512] * 5 + [1024] * 2)
    drops = random_drops(B, H, T, bad, q0, layers) if random.random() < 0.7 else None
    b, j = torch.nonzero(copies[..., 0] >= 0, as_tuple=True)
    pos, s1, s2, kind = copies[b, j].unbind(1)
    copies = b, pos, s1, s2, kind
    looking = sorted({l for l, _, _ in LOOK_BACK}) if prev_weight > 0 else []
    picks = [None] * layers
    for l in RECALL:
        picks[l] = point_picks(copies, H, pointing)
    for l in looking:
        picks[l] = look_back_picks(l, B, H, T)
    logits, kept = net(ids, n_local, angle, drops, picks)

    ce = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    ce, w = ce.view(B, T - 1), w[:, 1:]
    loss = (ce * w).sum() / w.sum()
    hit = logits[b, pos].argmax(-1) == ids[b, pos + 1]
    after = torch.isin(b * T + pos, (b * T + pos)[kind == FIRST] + 1)
    log = dict(ce=loss.item(), lm=ce[w == 0.5].mean().item())
    log["copy"] = hit[kind != INSIDE].float().mean().item()
    log["digit1"] = hit[after].float().mean().item()
    if looking:
        x = -sum((kept[l][0] + 1e-6).log().mean() for l in looking)
        loss = loss + prev_weight * x
        log["prev"] = x.item()
    if len(b):
        x = 0
        for l in RECALL:
            z1, z2 = kept[l][0].view(2, pointing, -1)
            x = x - (z1 + z2 * (s1 != s2) + 1e-6).log().mean() / len(RECALL)
        loss = loss + WEIGHT["point"] * x
        log["point"] = x.item()
        for l in RECALL:
            size = random.choice([8, 12, 16, 24, 32, 48, 64])
            pieces = size, random.randrange(size)
            x, log[f"won{l}"] = event_loss(*kept[l][1:], net.tab, angle, bad, copies, q0, *pieces)
            loss = loss + WEIGHT["event"] * x / len(RECALL)
            log[f"event{l}"] = x.item()
    return loss, log


def main():
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--tok", required=True, help="folder of tokenizer.json")
    ap.add_argument(
        "--texts", required=True, help="folder of war_and_peace.txt and frankenstein.txt"
    )
    ap.add_argument("--out", required=True, help="folder for ckpt.pt and log.txt")
    ap.add_argument("--steps", type=int, required=True, help="length of the schedule")
    ap.add_argument("--until", type=int, help="stop after this step of the schedule")
    ap.add_argument(
        "--stages",
        required=True,
        help="STEP:LENGTHxROWS,... : from this step on a batch has ROWS rows of LENGTH tokens",
    )
    ap.add_argument(
        "--mix",
        default="0.10,0.20",
        help="share of plain text, share of text and copies; the rest are facts and questions",
    )
    ap.add_argument(
        "--hard", type=float, default=0.0, help="share of values that are hard to copy, see data.py"
    )
    ap.add_argument("--init", help="checkpoint to carry on from")
    ap.add_argument(
        "--decay-from",
        type=int,
        help="step from which on the learning rates fall linearly (default: never)",
    )
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(a.seed)
    random.seed(a.seed + 7)
    mix = [float(x) for x in a.mix.split(",")]
    gen = Generator(os.path.join(a.tok, "tokenizer.json"), a.texts, a.seed, mix, a.hard)
    cfg = dict(CONFIG, vocab_size=gen.vocab)
    net = Llama(cfg, LOOK_BACK)
    if a.init:
        net.load_state_dict(torch.load(a.init)["net"])
    opt = Optimizer(net)
    stages = [
        (int(f), *map(int, s.split("x"))) for f, s in (x.split(":") for x in a.stages.split(","))
    ]
    os.makedirs(a.out, exist_ok=True)
    out = open(os.path.join(a.out, "log.txt"), "a")

    def say(x):
        print(x, flush=True)
        out.write(x + "\n")
        out.flush()

    def save():
        f = os.path.join(a.out, "ckpt.pt")
        torch.save(dict(net=net.state_dict(), cfg=cfg), f + ".tmp")
        os.replace(f + ".tmp", f)

    say(f"# {sum(p.numel() for p in net.parameters())} parameters, {vars(a)}")
    t0, tokens, log = time.time(), 0, {}
    last = a.until or a.steps
    for step in range(last):
        _, T, B = [s for s in stages if s[0] <= step][-1]
        prev = 0.0 if a.init else WEIGHT["prev"] * max(0.0, 1 - step / PREV_STEPS)
        loss, m = step_loss(net, [torch.from_numpy(x) for x in gen.batch(B, T)], prev)
        for p in net.parameters():
            p.grad = None
        loss.backward()
        scale = min(1, (step + 1) / WARMUP)
        if a.decay_from is not None and step > a.decay_from:
            scale *= max(LOWEST, (1 - step / a.steps) / (1 - a.decay_from / a.steps))
        opt.step(scale)

        tokens += B * T
        for k, v in m.items():
            if v == v:
                log.setdefault(k, []).append(v)
        if (step + 1) % 50 == 0 or step + 1 == last:
            s = time.time() - t0
            say(
                f"{step + 1} {tokens / 1e6:.2f}M {s / 60:.1f}min {tokens / s:.0f}tok/s "
                f"T{T} lr{scale:.2f} " + " ".join(f"{k}={np.mean(v):.3f}" for k, v in log.items())
            )
            log = {}
        if (step + 1) % 250 == 0 or step + 1 == last:
            save()


if __name__ == "__main__":
    main()

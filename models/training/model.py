# SPDX-License-Identifier: Apache-2.0
"""A LLaMA-shaped model in torch, trained with the attention that the episodic memory uses.

Keys nearer than ``n_local`` are seen with their rotary distance. Keys farther away are seen
unrotated, by a query rotated to one fixed position, as the memory shows its sinks and recalled
events. Parameter names are those of Hugging Face's ``LlamaForCausalLM``. Matrix products run in
bfloat16, everything that is kept (weights, residual stream, sums) in float32."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = dict(
    vocab_size=1024,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    tie_word_embeddings=True,
)
QUERY_BLOCK = 128


def rope_table(n, d, theta):
    """Cosines and sines of positions 0..n-1, each of shape (n, d)."""
    inv = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    a = torch.arange(n, dtype=torch.float64)[:, None] * inv[None]
    a = torch.cat([a, a], 1)
    return a.cos().float(), a.sin().float()


def rot(x, cos, sin):
    """Rotary embedding, halves paired as in LLaMA."""
    h = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., h:], x[..., :h]], -1) * sin


def query_blocks(T, n_local):
    """(first query, end, first near key, number of near keys, number of far keys) of each block
    of queries."""
    for c0 in range(0, T, QUERY_BLOCK):
        c1 = min(T, c0 + QUERY_BLOCK)
        w0 = max(0, c0 - n_local + 1)
        yield c0, c1, w0, c1 - w0, max(0, c1 - n_local)


class MemoryAttention(torch.autograd.Function):
    """softmax over near keys (qn . kn) and far keys (qf . kf) in one, without building what
    causality forbids.

    qn, qf, kn, kf, v: (B*H, T, d), queries already scaled. drop: (B*H, T) bool or None, far keys
    that are absent. pick: (rows, positions, keys), int64 each, or None. Returns the output, the
    picked probabilities and, per key, the probability it received from queries that had it in
    their window (no gradient); the last two empty without pick."""

    @staticmethod
    def forward(ctx, qn, qf, kn, kf, v, n_local, drop, pick):
        N, T, d = qn.shape
        out, kept, ps = torch.empty_like(qn), [], []
        received = torch.zeros(N, T) if pick is not None else torch.zeros(0)
        picked = torch.zeros(len(pick[0])) if pick is not None else torch.zeros(0)
        for c0, c1, w0, nn_, nf in query_blocks(T, n_local):
            i = torch.arange(c0, c1)[:, None]
            near, far = torch.arange(w0, c1), torch.arange(nf)
            dist = i - near
            hide = torch.cat([(dist < 0) | (dist >= n_local), i - far < n_local], 1)
            bias = torch.zeros(hide.shape, dtype=torch.bfloat16).masked_fill_(hide, float("-inf"))
            s = torch.bmm(qn[:, c0:c1], kn[:, w0:c1].transpose(1, 2))
            if nf:
                s = torch.cat([s, torch.bmm(qf[:, c0:c1], kf[:, :nf].transpose(1, 2))], 2)
            s += bias
            if nf and drop is not None:
                s[:, :, nn_:].masked_fill_(drop[:, None, :nf], float("-inf"))
            p = torch.softmax(s, -1)
            vv = torch.cat([v[:, w0:c1], v[:, :nf]], 1) if nf else v[:, w0:c1]
            out[:, c0:c1] = torch.bmm(p, vv)
            sel = None
            if pick is not None:
                received[:, w0:c1] += p[:, :, :nn_].sum(1, dtype=torch.float32)
                b, t, j = pick
                m = torch.nonzero((t >= c0) & (t < c1))[:, 0]
                col = torch.where(t[m] - j[m] < n_local, j[m] - w0, nn_ + j[m])
                sel = (m, b[m], t[m] - c0, col)
                picked[m] = p[sel[1:]].float()
            kept.append(sel)
            ps.append(p)
        ctx.save_for_backward(qn, qf, kn, kf, v, *ps)
        ctx.kept, ctx.n_local = kept, n_local
        ctx.mark_non_differentiable(received)
        return out, picked, received

    @staticmethod
    def backward(ctx, dout, dpicked, _):
        qn, qf, kn, kf, v, *ps = ctx.saved_tensors
        T = qn.shape[1]
        dqn, dqf = torch.zeros_like(qn), torch.zeros_like(qf)
        dkn, dkf, dv = (torch.zeros(x.shape) for x in (kn, kf, v))
        for (c0, c1, w0, nn_, nf), p, sel in zip(query_blocks(T, ctx.n_local), ps, ctx.kept):
            do = dout[:, c0:c1]
            vv = torch.cat([v[:, w0:c1], v[:, :nf]], 1) if nf else v[:, w0:c1]
            dp = torch.bmm(do, vv.transpose(1, 2))
            if sel is not None:
                dp.index_put_(sel[1:], dpicked[sel[0]].bfloat16(), accumulate=True)
            ds = torch._softmax_backward_data(dp, p, -1, torch.bfloat16)
            dvv = torch.bmm(p.transpose(1, 2), do)
            dv[:, w0:c1] += dvv[:, :nn_]
            dqn[:, c0:c1] = torch.bmm(ds[:, :, :nn_], kn[:, w0:c1])
            dkn[:, w0:c1] += torch.bmm(ds[:, :, :nn_].transpose(1, 2), qn[:, c0:c1])
            if nf:
                dv[:, :nf] += dvv[:, nn_:]
                dqf[:, c0:c1] = torch.bmm(ds[:, :, nn_:], kf[:, :nf])
                dkf[:, :nf] += torch.bmm(ds[:, :, nn_:].transpose(1, 2), qf[:, c0:c1])
        return dqn, dqf, dkn.bfloat16(), dkf.bfloat16(), dv.bfloat16(), None, None, None


class Linear(nn.Module):
    """x W^T in bfloat16."""

    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) * 0.7 * i**-0.5)

    def forward(self, x):
        return x.bfloat16() @ self.weight.bfloat16().T


class Norm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, d = c["hidden_size"], c["head_dim"]
        self.H, self.G, self.d = c["num_attention_heads"], c["num_key_value_heads"], d
        self.q_proj, self.k_proj = Linear(h, self.H * d), Linear(h, self.G * d)
        self.v_proj, self.o_proj = Linear(h, self.G * d), Linear(self.H * d, h)

    def forward(self, x, tab, n_local, angle, drop, pick):
        """-> output, picked probabilities, received probability, unrotated q (B,H,T,d), k
        (B,G,T,d)."""
        B, T, _ = x.shape
        H, G, d = self.H, self.G, self.d
        x = x.bfloat16()
        q = self.q_proj(x).view(B, T, H, d).transpose(1, 2).float()
        k = self.k_proj(x).view(B, T, G, d).transpose(1, 2).float()
        v = self.v_proj(x).view(B, T, G, d).transpose(1, 2)
        cos, sin = tab[0][:T], tab[1][:T]
        qs = q * d**-0.5
        wide = lambda z: z.repeat_interleave(H // G, 1).reshape(B * H, T, d)
        flat = lambda z: z.bfloat16().reshape(B * H, T, d)
        o, picked, received = MemoryAttention.apply(
            flat(rot(qs, cos, sin)),
            flat(rot(qs, tab[0][angle - 1], tab[1][angle - 1])),
            wide(rot(k, cos, sin).bfloat16()),
            wide(k.bfloat16()),
            wide(v),
            n_local,
            drop,
            pick,
        )
        o = o.view(B, H, T, d).transpose(1, 2).reshape(B, T, H * d)
        return self.o_proj(o), picked, received, q, k


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, f = c["hidden_size"], c["intermediate_size"]
        self.gate_proj, self.up_proj, self.down_proj = Linear(h, f), Linear(h, f), Linear(f, h)

    def forward(self, x):
        x = x.bfloat16()
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn, self.mlp = Attention(c), MLP(c)


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])


class Llama(nn.Module):
    """Tied head. ``look_back`` gives (layer, head, tokens back): heads that start out looking
    that far back."""

    def __init__(self, c, look_back=(), max_pos=2048):
        super().__init__()
        self.c = dict(c)
        self.model = Body(c)
        self.tab = rope_table(max_pos, c["head_dim"], c["rope_theta"])
        with torch.no_grad():
            self.model.embed_tokens.weight.normal_()
            self.model.norm.weight.fill_(0.06)  # unit embeddings, tied: logits of order one
            for L in self.model.layers:
                L.self_attn.o_proj.weight.mul_(0.3)
                L.mlp.down_proj.weight.mul_(0.3)
            self.start_looking_back(look_back)

    def start_looking_back(self, heads, const=4.0, amp=1.5, pairs=8):
        """Through a constant feature of the embeddings and the fast rotary pairs."""
        d = self.c["head_dim"]
        theta = self.c["rope_theta"] ** (-torch.arange(0, d, 2) / d)[:pairs]
        self.model.embed_tokens.weight[:, 0] = const
        for l, h, back in heads:
            a = self.model.layers[l].self_attn
            g = h // (a.H // a.G)
            k = a.k_proj.weight[g * d : (g + 1) * d]
            if k[0, 0] != amp:
                k.mul_(0.3)
                k[:pairs, 0], k[d // 2 : d // 2 + pairs, 0] = amp, 0
            q = a.q_proj.weight[h * d : (h + 1) * d]
            q.mul_(0.3)
            q[:pairs, 0] = amp * torch.cos(-back * theta)
            q[d // 2 : d // 2 + pairs, 0] = amp * torch.sin(-back * theta)

    def head(self, x):
        return (self.model.norm(x).bfloat16() @ self.model.embed_tokens.weight.bfloat16().T).float()

    def forward(self, ids, n_local, angle, drops=None, picks=None):
        """angle: the fixed position is angle - 1. drops, picks: per layer, see MemoryAttention;
        picks[l] None: not wanted. -> logits, {layer: (picked, received, q, k)} of the layers with
        a pick."""
        x = self.model.embed_tokens(ids)
        kept = {}
        for l, L in enumerate(self.model.layers):
            pick = picks[l] if picks else None
            o, *rest = L.self_attn(
                L.input_layernorm(x), self.tab, n_local, angle, drops[l] if drops else None, pick
            )
            if pick is not None:
                kept[l] = rest
            x = x + o
            x = x + L.mlp(L.post_attention_layernorm(x))
        return self.head(x), kept

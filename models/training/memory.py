# SPDX-License-Identifier: Apache-2.0
"""The episodic memory in torch: one stream, float32, on the processor. It is for measuring
accuracy, not for speed.

Events are cut where surprise exceeds mean + gamma * deviation of the last n_local tokens; each is
represented, per query head, by the mean of the n_repr keys that received most attention while
they were in the window; before each step every layer recalls the events nearest to its mean
query, up to a capacity. Sinks, tokens that wait for a boundary and recalled events are seen
unrotated by a query rotated to n_local - 1."""

import numpy as np
import torch
import torch.nn.functional as F

from model import rope_table, rot

SETTINGS = dict(
    n_init=16, n_local=256, n_mem=256, chunk=256, n_repr=4, min_block=8, max_block=128, gamma=1.0
)


class Memory:
    def __init__(self, net, settings, capacity, dtype=torch.float32):
        """capacity: most tokens the stream may have. dtype: that of the stored keys and values."""
        self.net, self.c, self.m = net, net.c, dict(SETTINGS, **settings)
        c, m = self.c, self.m
        self.L, self.H, self.G, self.d = (
            c["num_hidden_layers"],
            c["num_attention_heads"],
            c["num_key_value_heads"],
            c["head_dim"],
        )
        self.K, self.V = (
            [torch.empty(capacity, self.G, self.d, dtype=dtype) for _ in range(self.L)]
            for _ in range(2)
        )
        self.received = [torch.zeros(capacity, self.H) for _ in range(self.L)]
        self.surprise, self.flag = np.zeros(capacity), np.zeros(capacity, bool)
        events = capacity // m["min_block"] + 2
        self.first, self.end = np.zeros(events, np.int64), np.zeros(events, np.int64)
        self.rep = [torch.empty(64, self.H * self.d) for _ in range(self.L)]
        self.tab = rope_table(m["n_local"] + max(m["chunk"], 512) + 2, self.d, c["rope_theta"])
        self.N = self.E = 0  # tokens so far, events so far
        self.closed = m["n_init"]  # the end of the last event
        self.last, self.trace = None, None
        self.weights = []
        for L in net.model.layers:
            a, n1, n2 = L.self_attn, L.input_layernorm.weight, L.post_attention_layernorm.weight
            qkv = torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]) * n1
            up = torch.cat([L.mlp.gate_proj.weight, L.mlp.up_proj.weight]) * n2
            self.weights.append(
                [
                    w.T.contiguous().detach()
                    for w in (qkv, a.o_proj.weight, up, L.mlp.down_proj.weight)
                ]
            )
        self.head = (net.model.embed_tokens.weight * net.model.norm.weight).T.contiguous().detach()

    # ---- going back to a state: several questions on one context ----
    def fork(self):
        a = max(0, min(self.closed, self.N - self.m["n_local"]) - 1)
        return (
            self.N,
            self.E,
            self.closed,
            self.last,
            a,
            [r[a : self.N].clone() for r in self.received],
        )

    def restore(self, state):
        self.N, self.E, self.closed, self.last, a, received = state
        for r, x in zip(self.received, received):
            r[a : self.N], r[self.N : self.N + 4096] = x, 0

    # ---- one step ----
    def norm(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.c["rms_norm_eps"])

    def recall(self, l, query, n):
        """-> the events to show, best first; all of them if they fit"""
        m = self.m
        stored = self.closed - m["n_init"]
        capacity = (
            m["n_init"] + m["chunk"] + m["n_mem"] - (max(self.N + n - m["n_local"], 0) - stored)
        )
        if stored <= capacity:
            return list(range(self.E))
        if capacity <= 0:
            return []
        best = torch.topk(
            self.rep[l][: self.E] @ query, min(self.E, capacity // m["min_block"] + 2)
        ).indices.tolist()
        out, total = [], 0
        for e in best:
            before, total = total, total + int(self.end[e] - self.first[e])
            out.append(e)
            if total >= capacity:
                if capacity - before <= total - capacity:
                    out.pop()
                break
        return out

    @torch.no_grad()
    def step(self, ids):
        """One chunk of tokens -> logits. With ``trace`` a list, (N, n, recalled events by layer)
        is appended to it."""
        m, n, N, H, G, d = self.m, len(ids), self.N, self.H, self.G, self.d
        R, nl = H // G, m["n_local"]
        x = self.net.model.embed_tokens.weight[torch.as_tensor(ids)]
        sinks = m["n_init"] if self.E else 0
        lo = self.closed if self.E else 0  # tokens from here on are in no event
        w0, f1 = max(lo, N - nl + 1), max(lo, N + n - nl)  # the window starts at w0; lo..f1 wait
        pos = torch.arange(N, N + n)[:, None]
        dist = pos - torch.arange(w0, N + n)
        hide_near = (dist < 0) | (dist >= nl)
        hide_wait = pos - torch.arange(lo, f1) < nl
        rows = torch.arange(N + n - w0)
        cos, sin = self.tab[0][rows][:, None], self.tab[1][rows][:, None]
        fixed = self.tab[0][nl - 1], self.tab[1][nl - 1]
        recalled = []
        for l, (w_qkv, w_o, w_up, w_down) in enumerate(self.weights):
            y = self.norm(x) @ w_qkv
            q, k, v = (
                y[:, : H * d].view(n, H, d),
                y[:, H * d : (H + G) * d].view(n, G, d),
                y[:, (H + G) * d :].view(n, G, d),
            )
            self.K[l][N : N + n], self.V[l][N : N + n] = k, v
            qf = rot(q, *fixed)
            ev = self.recall(l, qf.mean(0).reshape(-1), n) if self.E and m["n_mem"] > 0 else []
            recalled.append(ev)
            far = np.concatenate(
                [np.arange(sinks), np.arange(lo, f1)]
                + [np.arange(self.first[e], self.end[e]) for e in ev]
            )
            far = torch.as_tensor(far.astype(np.int64))
            hide_far = torch.zeros(n, len(far), dtype=torch.bool)
            hide_far[:, sinks : sinks + f1 - lo] = hide_wait
            grouped = lambda z: z.view(n, G, R, d).permute(1, 2, 0, 3).reshape(G, R * n, d)
            scores = lambda a, b, hide: (
                (grouped(a) @ b.permute(1, 2, 0)).view(G, R, n, -1) * d**-0.5
            ).masked_fill_(hide, -1e30)
            kn = rot(self.K[l][w0 : N + n].float(), cos, sin)
            near = scores(rot(q, cos[N - w0 :], sin[N - w0 :]), kn, hide_near)
            p = torch.softmax(
                torch.cat([near, scores(qf, self.K[l][far].float(), hide_far)], -1), -1
            )
            self.received[l][w0 : N + n] += p[..., : near.shape[-1]].sum(2).view(H, -1).T
            values = torch.cat([self.V[l][w0 : N + n], self.V[l][far]]).float().transpose(0, 1)
            o = (
                (p.reshape(G, R * n, -1) @ values)
                .view(G, R, n, d)
                .permute(2, 0, 1, 3)
                .reshape(n, H * d)
            )
            x = x + o @ w_o
            gate, up = (self.norm(x) @ w_up).chunk(2, 1)
            x = x + (F.silu(gate) * up) @ w_down
        logits = self.norm(x) @ self.head
        if self.trace is not None:
            self.trace.append((N, n, recalled))
        self.mark(ids, logits)
        self.N += n
        self.cut()
        return logits

    def mark(self, ids, logits):
        """Flags the tokens that surprise."""
        m, n, N = self.m, len(ids), self.N
        skip = 1 if N == 0 else 0
        before = logits[:-1] if skip else torch.cat([self.last, logits[:-1]])
        t = torch.as_tensor(ids[skip:])
        self.surprise[N + skip : N + n] = (
            (torch.logsumexp(before, 1) - before.gather(1, t[:, None])[:, 0]).double().numpy()
        )
        self.last = logits[-1:].clone()
        lo = max(1, N - m["n_local"])
        z = self.surprise[lo : N + n]
        s1, s2 = np.concatenate([[0.0], np.cumsum(z)]), np.concatenate([[0.0], np.cumsum(z * z)])
        t = np.arange(N, N + n)
        a, b = np.maximum(t - m["n_local"], 1) - lo, np.maximum(t - lo, 0)
        a = np.maximum(a, 0)
        count = np.maximum(b - a, 2)
        mean = (s1[b] - s1[a]) / count
        var = np.maximum((s2[b] - s2[a]) - count * mean * mean, 0) / (count - 1)
        self.flag[N : N + n] = (b - a >= 2) & (
            self.surprise[N : N + n] > mean + m["gamma"] * np.sqrt(var)
        )

    def cut(self):
        """Closes the events that have left the window."""
        m, limit, start = self.m, self.N - self.m["n_local"], self.closed
        if limit <= start:
            return
        for b in (start + 1 + np.nonzero(self.flag[start + 1 : limit])[0]).tolist():
            while b - start >= m["max_block"]:
                self.close(start, start + m["max_block"])
                start += m["max_block"]
            if b - start >= m["min_block"]:
                self.close(start, b)
                start = b
        while limit - start >= m["max_block"]:
            self.close(start, start + m["max_block"])
            start += m["max_block"]
        self.closed = start

    def close(self, a, b):
        e = self.E
        self.first[e], self.end[e] = a, b
        if e >= len(self.rep[0]):
            self.rep = [torch.cat([r, torch.empty_like(r)]) for r in self.rep]
        group = (torch.arange(self.H) // (self.H // self.G))[None]
        for l in range(self.L):
            top = self.received[l][a:b].topk(min(self.m["n_repr"], b - a), 0).indices
            self.rep[l][e] = self.K[l][a + top, group].float().mean(0).reshape(-1)
        self.E += 1

    # ---- driving ----
    def feed(self, ids):
        for s in range(0, len(ids), self.m["chunk"]):
            logits = self.step(ids[s : s + self.m["chunk"]])
        return logits

    def answer(self, logits, most, stop):
        """Greedy tokens after the last of ``logits``."""
        out = []
        while len(out) < most:
            t = int(logits[-1].argmax())
            if t == stop:
                break
            out.append(t)
            logits = self.step([t])
        return out

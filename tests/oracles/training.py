"""ORQA's training in numpy, float64, forward and backward, written from the equations.

Lee et al. 2019, sections 3 to 6, and what the 2019 release adds: BERT's tanh pooler, LayerNorm on
the projection, additive masks of -10,000, BERT's own Adam. A function returns its value, and a
function of the loss's derivative by that value; `Model.grads` adds up those by the parameters.
"""

import numpy as np
from scipy.special import erf

MASK = -10_000.0


class Model:
    """Parameters by their path, and their gradients."""

    def __init__(self, params, heads, eps=1e-12):
        self.params = {name: np.asarray(value, np.float64) for name, value in params.items()}
        self.heads, self.eps = heads, eps
        self.clear()

    def clear(self):
        self.grads = {name: np.zeros_like(value) for name, value in self.params.items()}

    def dense(self, name, x):
        kernel, bias = self.params[f"{name}/kernel"], self.params[f"{name}/bias"]

        def back(dy):
            rows, dys = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
            self.grads[f"{name}/kernel"] += rows.T @ dys
            self.grads[f"{name}/bias"] += dys.sum(0)
            return dy @ kernel.T

        return x @ kernel + bias, back

    def norm(self, x, scale_name, bias_name, eps):
        scale, bias = self.params[scale_name], self.params[bias_name]
        centred = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
        normed = centred / spread

        def back(dy):
            axes = tuple(range(dy.ndim - 1))
            self.grads[scale_name] += (dy * normed).sum(axes)
            self.grads[bias_name] += dy.sum(axes)
            d = dy * scale
            along = (d * normed).mean(-1, keepdims=True)
            return (d - d.mean(-1, keepdims=True) - normed * along) / spread

        return normed * scale + bias, back

    def layer_norm(self, name, x, eps=None):
        return self.norm(x, f"{name}/scale", f"{name}/bias", eps or self.eps)

    def bert(self, name, ids, mask, segments):
        """Hidden states [B, L, H]."""
        tables = [(f"{name}/embeddings/word", ids), (f"{name}/embeddings/segment", segments)]
        tables += [(f"{name}/embeddings/position", np.arange(ids.shape[1])[None] + 0 * ids)]
        x = sum(self.params[table][rows] for table, rows in tables)
        x, norm_back = self.layer_norm(f"{name}/embeddings/norm", x)
        layers, number = [], 0
        while f"{name}/layer_{number}/query/kernel" in self.params:
            x, back = self.layer(f"{name}/layer_{number}", x, mask)
            layers.append(back)
            number += 1

        def back(dx):
            for layer_back in reversed(layers):
                dx = layer_back(dx)
            dx = norm_back(dx)
            for table, rows in tables:
                np.add.at(self.grads[table], rows, dx)

        return x, back

    def layer(self, name, x, mask):
        batch, length, hidden = x.shape
        size = hidden // self.heads

        def split(y):
            return y.reshape(batch, length, self.heads, size).transpose(0, 2, 1, 3)

        def join(y):
            return y.transpose(0, 2, 1, 3).reshape(batch, length, hidden)

        (q, q_back), (k, k_back), (v, v_back) = (
            self.dense(f"{name}/{part}", x) for part in ("query", "key", "value")
        )
        q, k, v = split(q), split(k), split(v)
        logits = q @ k.transpose(0, 1, 3, 2) / np.sqrt(size)
        logits = logits + np.where(mask, 0.0, MASK)[:, None, None, :]
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended, output_back = self.dense(f"{name}/attention_output", join(weights @ v))
        y, attention_norm_back = self.layer_norm(f"{name}/attention_norm", x + attended)
        inner, inner_back = self.dense(f"{name}/intermediate", y)
        cdf = 0.5 * (1.0 + erf(inner / np.sqrt(2.0)))
        slope = cdf + inner * np.exp(-0.5 * inner**2) / np.sqrt(2.0 * np.pi)
        fed, fed_back = self.dense(f"{name}/output", inner * cdf)
        z, output_norm_back = self.layer_norm(f"{name}/output_norm", y + fed)

        def back(dz):
            dsum = output_norm_back(dz)
            dy = dsum + inner_back(fed_back(dsum) * slope)
            dx = attention_norm_back(dy)
            dheads = split(output_back(dx))
            dweights = dheads @ v.transpose(0, 1, 3, 2)
            dlogits = weights * (dweights - (dweights * weights).sum(-1, keepdims=True))
            dlogits /= np.sqrt(size)
            dx = dx + q_back(join(dlogits @ k))
            dx = dx + k_back(join(dlogits.transpose(0, 1, 3, 2) @ q))
            return dx + v_back(join(weights.transpose(0, 1, 3, 2) @ dheads))

        return z, back

    def tower(self, name, ids, mask, segments):
        """Retrieval vectors [B, P]: tanh pooler on [CLS], projection, LayerNorm."""
        hidden, bert_back = self.bert(f"{name}/bert", ids, mask, segments)
        before, pooler_back = self.dense(f"{name}/bert/pooler", hidden[:, 0])
        pooled = np.tanh(before)
        projected, projection_back = self.dense(f"{name}/projection", pooled)
        vectors, norm_back = self.layer_norm(f"{name}/norm", projected, 1e-3)

        def back(dvectors):
            dhidden = np.zeros_like(hidden)
            dpooled = projection_back(norm_back(dvectors))
            dhidden[:, 0] = pooler_back(dpooled * (1.0 - pooled**2))
            bert_back(dhidden)

        return vectors, back

    def reader(self, name, ids, mask, segments, spans):
        """Scores [B, S] of spans (first, last), both counted in."""
        hidden, bert_back = self.bert(f"{name}/bert", ids, mask, segments)
        ends, ends_back = self.dense(f"{name}/endpoints", hidden)
        size = ends.shape[-1] // 2
        first, last = np.array(spans).T
        before = ends[:, first, :size] + ends[:, last, size:]
        score = f"{name}/span_score"
        x = np.maximum(before, 0.0)
        normed, norm_back = self.norm(x, f"{score}/norm_scale", f"{score}/norm_bias", 1e-3)
        scores, score_back = self.dense(score, normed)

        def back(dscores):
            dbefore = norm_back(score_back(dscores[..., None])) * (before > 0.0)
            dends = np.zeros_like(ends)
            for s in range(len(spans)):
                dends[:, first[s], :size] += dbefore[:, s]
                dends[:, last[s], size:] += dbefore[:, s]
            bert_back(ends_back(dends))

        return scores[..., 0], back


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def in_batch_loss(questions, blocks):
    """Mean cross entropy of the own block; derivatives by questions and blocks (section 4)."""
    scores = questions @ blocks.T
    prior = softmax(scores)
    loss = -np.log(np.diagonal(prior)).mean()
    dscores = (prior - np.eye(len(scores))) / len(scores)
    return loss, dscores @ blocks, dscores.T @ questions


def marginal_loss(scores, correct):
    """-log of the share of the correct among all, by additive masks; 0 where none is."""
    if not correct.any():
        return 0.0, np.zeros_like(scores)
    masked = scores + np.where(correct, 0.0, MASK)
    top = scores.max()
    loss = np.log(np.exp(scores - top).sum()) - np.log(np.exp(masked - top).sum())
    return loss, softmax(scores) - softmax(masked)


class BertAdam:
    """BERT's released optimiser: clipping, Adam without bias correction, decay, schedule."""

    def __init__(self, model, peak, warmup, steps, decay=0.01):
        self.model, self.peak, self.decay = model, peak, decay
        self.warmup, self.steps, self.step = warmup, steps, 0
        self.first = {name: np.zeros_like(value) for name, value in model.params.items()}
        self.second = {name: np.zeros_like(value) for name, value in model.params.items()}

    def rate(self, step):
        if step < self.warmup:
            return self.peak * step / self.warmup
        return self.peak * (1.0 - step / self.steps)

    def update(self):
        grads, params = self.model.grads, self.model.params
        length = np.sqrt(sum((gradient**2).sum() for gradient in grads.values()))
        for name in params:
            gradient = grads[name] / max(length, 1.0)
            self.first[name] = 0.9 * self.first[name] + 0.1 * gradient
            self.second[name] = 0.999 * self.second[name] + 0.001 * gradient**2
            change = self.first[name] / (np.sqrt(self.second[name]) + 1e-6)
            if not name.endswith(("bias", "scale")):
                change = change + self.decay * params[name]
            params[name] = params[name] - self.rate(self.step) * change
        self.step += 1
        self.model.clear()


def ict_step(model, optimizer, batch):
    """One step of the Inverse Cloze Task with one shared tower; returns the loss."""
    questions, questions_back = model.tower("encoder", *batch["question"])
    blocks, blocks_back = model.tower("encoder", *batch["block"])
    loss, dquestions, dblocks = in_batch_loss(questions, blocks)
    questions_back(dquestions)
    blocks_back(dblocks)
    optimizer.update()
    return loss


def orqa_step(model, optimizer, batch):
    """One step of fine-tuning over questions with a beam each; returns the mean loss."""
    questions, questions_back = model.tower("retriever/encoder", *batch["question"])
    dquestions = np.zeros_like(questions)
    total, size = 0.0, len(questions)
    for b in range(size):
        beam = batch["beams"](b, questions[b])
        scores = beam["vectors"] @ questions[b]
        early, dscores = marginal_loss(scores, beam["early_correct"])
        logits, reader_back = model.reader("reader", *beam["reader"], beam["spans"])
        read = len(logits)
        candidates = logits + np.where(beam["span_mask"], 0.0, MASK) + scores[:read, None]
        reading, dcandidates = marginal_loss(
            candidates.ravel(), (beam["span_correct"] & beam["span_mask"]).ravel()
        )
        dcandidates = dcandidates.reshape(logits.shape)
        dscores[:read] += dcandidates.sum(1)
        dquestions[b] = dscores @ beam["vectors"] / size
        reader_back(dcandidates / size)
        total += (early + reading) / size
    questions_back(dquestions)
    optimizer.update()
    return total

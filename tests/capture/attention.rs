//! Attention in the chain of captured operators: both passes, dense with dropout, whose state differs from
//! replay to replay, packed, dense without dropout, and in float32, which other kernels take.

use super::*;

pub fn steps(c: &mut Chain) {
    let workspace = c.output("workspace of attention", kNVTEByte, WORKSPACE, Scratch);
    let half = kNVTEBFloat16;
    attention(c, ["attention", "attention backward"], workspace, false, half, 0.25);
    attention(c, ["attention of packed tokens", "its backward"], workspace, true, half, 0.0);
    let plain = ["plain attention", "plain attention's backward"];
    attention(c, plain, workspace, false, half, 0.0);
    let single = ["attention in float32", "attention's backward in float32"];
    attention(c, single, workspace, false, kNVTEFloat32, 0.25);
}

fn attention(
    c: &mut Chain,
    names: [&'static str; 2],
    workspace: Id,
    packed: bool,
    dtype: NVTEDType,
    dropout: f32,
) {
    let (batch, heads, kv_heads, length, dim) = (2, 4, 2, 160, 64);
    let (q_len, kv_len) = (batch * length * heads * dim, batch * length * kv_heads * dim);
    let [q, k, v, d_o] = [q_len, kv_len, kv_len, q_len].map(|len| c.input(dtype, len));
    let state = c.rng.bytes(16);
    let state = c.buffers.add(state, 0);
    let starts: Vec<u8> = [0i32, 100, 320].into_iter().flat_map(i32::to_le_bytes).collect();
    let starts = c.buffers.add(starts, 0);
    let bound = Within(3e-2);
    let o = c.output("o", dtype, q_len, bound);
    let stats = c.output("stats", kNVTEFloat32, q_len / dim, Within(1e-3));
    let base = move |side: &Side| {
        let place = |id, heads: usize| {
            let (row, head) = ((heads * dim) as i64, dim as i64);
            let batch = length as i64 * row;
            AttentionTensor { data: side.at(id), dtype, batch, row, head, ..NO_ATTENTION_TENSOR }
        };
        let half = |heads| AttentionSide {
            cu_seqlens: if packed { side.at::<i32>(starts).cast_const() } else { null() },
            starts: if packed { side.at::<i32>(starts).cast_const() } else { null() },
            max_seqlen: if packed { 220 } else { length },
            tokens: batch * length,
            heads,
        };
        AttentionArgs {
            q: place(q, heads),
            k: place(k, kv_heads),
            v: place(v, kv_heads),
            o: place(o, heads),
            q_side: half(heads),
            kv_side: half(kv_heads),
            batch,
            dim_qk: dim,
            dim_v: dim,
            stats: side.at(stats),
            scale: 0.5,
            dropout,
            rng_state: if dropout == 0.0 { null() } else { side.at::<i64>(state).cast_const() },
            window_right: 0,
            workspace: side.at(workspace),
            workspace_bytes: WORKSPACE,
            ..ATTENTION
        }
    };
    c.step(names[0], move |side| run_attention(side, base(side)));
    let dq = c.output("dq", dtype, q_len, bound);
    let dk = c.output("dk", dtype, kv_len, bound);
    let dv = c.output("dv", dtype, kv_len, bound);
    c.step(names[1], move |side| {
        let args = base(side);
        let at = |id, like: AttentionTensor| AttentionTensor { data: side.at(id), ..like };
        let args = AttentionArgs {
            d_o: at(d_o, args.o),
            dq: at(dq, args.q),
            dk: at(dk, args.k),
            dv: at(dv, args.v),
            backward: true,
            ..args
        };
        run_attention(side, args)
    });
}

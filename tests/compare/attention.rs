//! Attention on random configurations. A pass that CUDA declines in its plan it must decline when it is run;
//! the reasons are counted and printed.

use crate::*;

/// Places of the rows of one tensor.
#[derive(Clone, Copy)]
struct Place {
    id: Id,
    strides: [i64; 3],
    dtype: NVTEDType,
    fp8: Option<[Id; 3]>,
}

/// One side: heads, longest sequence and rows of memory, and for packed sequences lengths and starts.
#[derive(Clone)]
struct SideShape {
    heads: usize,
    length: usize,
    rows: usize,
    cu_seqlens: Option<Id>,
    starts: Option<Id>,
}

struct Case {
    batch: usize,
    dims: [usize; 2],
    sides: [SideShape; 2],
    dtype: NVTEDType,
    /// q, k, v, o, do, dq, dk, dv.
    tensors: [Place; 8],
    /// Bias and its gradient.
    bias: Option<[Place; 2]>,
    s: [Id; 3],
    dp: [Id; 3],
    stats: Id,
    max: Option<Id>,
    sink: Option<[Id; 2]>,
    rng_state: Option<Id>,
    grads_amax: Option<Id>,
    workspace: Id,
    workspace_bytes: usize,
    options: AttentionArgs,
}

impl Place {
    fn on(&self, side: &Side) -> AttentionTensor {
        let [batch, row, head] = self.strides;
        let tensor = AttentionTensor {
            data: side.at(self.id),
            dtype: self.dtype,
            batch,
            row,
            head,
            ..NO_ATTENTION_TENSOR
        };
        self.fp8.map_or(tensor, |ids| scales(tensor, ids, side))
    }
}

fn scales(
    tensor: AttentionTensor,
    [scale, inverse, amax]: [Id; 3],
    side: &Side,
) -> AttentionTensor {
    AttentionTensor {
        scale: side.at(scale),
        scale_inv: side.at(inverse),
        amax: side.at(amax),
        ..tensor
    }
}

impl Case {
    fn new(rng: &mut Rng, b: &mut Buffers) -> Self {
        let dtype = rng.pick(&[kNVTEFloat16, kNVTEBFloat16, kNVTEBFloat16, kNVTEFloat8E4M3]);
        let fp8 = is_fp8(dtype);
        let (batch, kv_heads) = (rng.within(1, 4), rng.within(1, 4));
        let heads = kv_heads * rng.pick(&[1, 1, 2, 4]);
        let qk = rng.pick(&[32, 64, 64, 96, 128, 128, 192, 256]);
        let dims = [qk, if rng.chance(75) { qk } else { rng.pick(&[32, 64, 128]) }];
        let length = |rng: &mut Rng| match rng.below(4) {
            0 => rng.within(1, 40),
            1 => 64 * rng.within(1, 8),
            _ => rng.within(1, 600),
        };
        let first = length(rng);
        let lengths = [first, if rng.chance(50) { first } else { length(rng) }];
        let ragged = rng.chance(35);
        let padded = ragged || rng.chance(30);
        let sides = [(heads, lengths[0]), (kv_heads, lengths[1])].map(|(heads, length)| {
            let real: Vec<usize> =
                (0..batch)
                    .map(|_| {
                        if rng.chance(15) {
                            rng.pick(&[0, 1, length])
                        } else {
                            rng.within(0, length)
                        }
                    })
                    .collect();
            let (mut cu, mut starts) = (vec![0i32], vec![rng.below(5) as i32]);
            for len in &real {
                cu.push(cu[cu.len() - 1] + *len as i32);
                starts.push(starts[starts.len() - 1] + (*len + rng.below(5)) as i32);
            }
            let rows = if ragged { starts[batch] as usize + 1 } else { batch * length };
            let ints = |b: &mut Buffers, values: &[i32]| {
                b.add(values.iter().flat_map(|v| v.to_le_bytes()).collect(), 0)
            };
            SideShape {
                heads,
                length,
                rows,
                cu_seqlens: padded.then(|| ints(b, &cu)),
                starts: ragged.then(|| ints(b, &starts)),
            }
        });
        let outputs = if fp8 { rng.pick(&[kNVTEBFloat16, kNVTEFloat8E4M3]) } else { dtype };
        let gradients = if fp8 { rng.pick(&[kNVTEBFloat16, kNVTEFloat8E5M2]) } else { dtype };
        let order = rng.below(3);
        let tensor = |rng: &mut Rng, b: &mut Buffers, side: usize, dim: usize, dtype, input| {
            let SideShape { heads, length, rows, .. } = sides[side];
            let (h, s, d) = (heads, length, dim);
            let strides = match order {
                _ if ragged => [0, h * d, d],
                0 => [s * h * d, h * d, d],
                1 => [h * d, batch * h * d, d],
                _ => [h * s * d, d, s * d],
            };
            let numel = rows * heads * dim;
            let bytes =
                if input { units(rng, dtype, numel) } else { vec![0xCD; numel * size(dtype)] };
            let fp8 = is_fp8(dtype).then(|| {
                let scale = rng.pick(&[1.0f32, 16.0, 64.0]);
                [b.float(scale), b.float(1.0 / scale), b.float(7.0)]
            });
            Place { id: b.add(bytes, 0), strides: strides.map(|x| x as i64), dtype, fp8 }
        };
        let do_dtype = if fp8 { kNVTEFloat8E5M2 } else { dtype };
        let tensors = [
            tensor(rng, b, 0, dims[0], dtype, true),
            tensor(rng, b, 1, dims[0], dtype, true),
            tensor(rng, b, 1, dims[1], dtype, true),
            tensor(rng, b, 0, dims[1], outputs, false),
            tensor(rng, b, 0, dims[1], do_dtype, true),
            tensor(rng, b, 0, dims[0], gradients, false),
            tensor(rng, b, 1, dims[0], gradients, false),
            tensor(rng, b, 1, dims[1], gradients, false),
        ];
        let bias = (!fp8 && rng.chance(30)).then(|| {
            let shape = [(batch, 50), (heads, 50), (lengths[0], 75)]
                .map(|(dim, percent)| if rng.chance(percent) { dim } else { 1 });
            let numel = shape.iter().product::<usize>() * lengths[1];
            let stride = |dim: usize, stride: usize| if dim == 1 { 0 } else { stride as i64 };
            let [own_batch, own_heads, rows] = shape;
            let strides = [
                stride(own_batch, own_heads * rows * lengths[1]),
                stride(rows, lengths[1]),
                stride(own_heads, rows * lengths[1]),
            ];
            [units(rng, dtype, numel), vec![0xCD; numel * size(dtype)]].map(|bytes| Place {
                id: b.add(bytes, 0),
                strides,
                dtype,
                fp8: None,
            })
        });
        let stats = b.add(vec![0xCD; 4 * sides[0].rows * heads], 0);
        let max = rng.chance(30).then(|| b.add(vec![0xCD; 4 * sides[0].rows * heads], 0));
        let sink = rng.chance(30).then(|| {
            let values: Vec<f32> = (0..heads).map(|_| rng.unit()).collect();
            [b.floats(values), b.add(vec![0xCD; 4 * heads], 0)]
        });
        let dropout = rng.pick(&[0.0, 0.0, 0.1, 0.5]);
        let state = rng.bytes(16);
        let rng_state = (dropout > 0.0).then(|| b.add(state, 0));
        let window = |rng: &mut Rng| if rng.chance(60) { -1 } else { rng.within(0, 200) as i64 };
        let others = rng.pick(&[0, 0, 1, 6]);
        let options = AttentionArgs {
            scale: 1.0 / (qk as f32).sqrt(),
            dropout,
            window_left: window(rng),
            window_right: if rng.chance(40) { 0 } else { window(rng) },
            bottom_right: rng.chance(40),
            alibi: bias.is_none() && rng.chance(15),
            deterministic: rng.chance(50),
            heads_before: others / 2,
            other_heads: others,
            ..ATTENTION
        };
        let mut float = |value: f32| b.float(value);
        let s = [128.0, 1.0 / 128.0, 7.0].map(&mut float);
        let dp = [64.0, 1.0 / 64.0, 7.0].map(&mut float);
        let wants_amax = !fp8 && rng.chance(30);
        let before = rng.pick(&[0.0, 0.0, 1e4]);
        let grads_amax = wants_amax.then(|| b.float(before));
        let workspace = b.add(Vec::new(), 0);
        Self {
            batch,
            dims,
            sides,
            dtype,
            tensors,
            bias,
            s,
            dp,
            stats,
            max,
            sink,
            rng_state,
            grads_amax,
            workspace,
            workspace_bytes: 0,
            options,
        }
    }

    fn args(&self, side: &Side, backward: bool) -> AttentionArgs {
        let [q, k, v, o, d_o, dq, dk, dv] = self.tensors.each_ref().map(|place| place.on(side));
        let gradient = |tensor| if backward { tensor } else { NO_ATTENTION_TENSOR };
        let half = |s: &SideShape| AttentionSide {
            cu_seqlens: side.maybe(s.cu_seqlens),
            starts: side.maybe(s.starts),
            max_seqlen: s.length,
            tokens: s.rows,
            heads: s.heads,
        };
        let fp8 = |ids| match is_fp8(self.dtype) {
            true => scales(NO_ATTENTION_TENSOR, ids, side),
            false => NO_ATTENTION_TENSOR,
        };
        let bias =
            |which: usize| self.bias.map_or(NO_ATTENTION_TENSOR, |bias| bias[which].on(side));
        AttentionArgs {
            q,
            k,
            v,
            o,
            d_o: gradient(d_o),
            dq: gradient(dq),
            dk: gradient(dk),
            dv: gradient(dv),
            bias: bias(0),
            dbias: gradient(bias(1)),
            s: fp8(self.s),
            dp: fp8(self.dp),
            q_side: half(&self.sides[0]),
            kv_side: half(&self.sides[1]),
            batch: self.batch,
            dim_qk: self.dims[0],
            dim_v: self.dims[1],
            stats: side.at(self.stats),
            max: if backward { null_mut() } else { side.maybe(self.max) },
            sink: side.maybe(self.sink.map(|sink| sink[0])),
            dsink: side.maybe(self.sink.filter(|_| backward).map(|sink| sink[1])),
            rng_state: side.maybe(self.rng_state),
            grads_amax: side.maybe(self.grads_amax.filter(|_| backward)),
            backward,
            workspace: side.at(self.workspace),
            workspace_bytes: self.workspace_bytes,
            ..self.options
        }
    }

    /// What a pass writes, with its bound.
    fn outputs(&self, backward: bool) -> Vec<(&'static str, NVTEDType, Option<Id>, f64)> {
        let bound = match self.dtype {
            kNVTEFloat16 => 4e-3,
            kNVTEBFloat16 => 3e-2,
            // The implementations round P before or after it is normalized.
            _ => 0.3,
        };
        let t = &self.tensors;
        let within = |name, place: &Place, bound| {
            (name, place.dtype, Some(place.id), self.bound(place, bound))
        };
        let of = |name, place| within(name, place, bound);
        let amax = |place: &Place| place.fp8.map(|ids| ids[2]);
        let fp8 = is_fp8(self.dtype);
        let grads_amax = self.grads_amax.filter(|_| backward);
        let mut outputs = if backward {
            let terms = (self.sides[0].rows * self.sides[0].heads) as f64;
            // Gradients of keys and values are sums over rows, and over the heads of a group.
            let [q, kv] = &self.sides;
            let rows = (q.length * q.heads / kv.heads) as f64;
            let sums = bound * (rows / 256.0).sqrt().max(1.0);
            vec![
                of("dq", &t[5]),
                within("dk", &t[6], sums),
                within("dv", &t[7], sums),
                ("dbias", self.dtype, self.bias.map(|bias| bias[1].id), bound * terms.sqrt()),
                ("dsink", kNVTEFloat32, self.sink.map(|sink| sink[1]), 1e-3 * terms.sqrt()),
                ("amax of dp", kNVTEFloat32, fp8.then_some(self.dp[2]), 0.5),
                ("amax of dq", kNVTEFloat32, amax(&t[5]), 0.5),
                ("amax of dk", kNVTEFloat32, amax(&t[6]), 0.5),
                ("amax of dv", kNVTEFloat32, amax(&t[7]), 0.5),
                ("amax of gradients", kNVTEFloat32, grads_amax, sums),
            ]
        } else {
            vec![
                of("o", &t[3]),
                ("stats", kNVTEFloat32, Some(self.stats), 1e-3),
                ("max", kNVTEFloat32, self.max, 1e-3),
                ("amax of s", kNVTEFloat32, fp8.then_some(self.s[2]), 0.1),
                ("amax of o", kNVTEFloat32, amax(&t[3]), 0.3),
            ]
        };
        outputs.retain(|output| output.2.is_some());
        outputs
    }

    /// For FP8 outputs codes are compared, which hold a scale and are coarse.
    fn bound(&self, place: &Place, bound: f64) -> f64 {
        if is_fp8(place.dtype) { 64.0 * bound } else { bound }
    }
}

/// Values of U(-1, 1).
fn units(rng: &mut Rng, dtype: NVTEDType, len: usize) -> Vec<u8> {
    let values: Vec<u8> = (0..len).flat_map(|_| rng.unit().to_le_bytes()).collect();
    cast(&values, kNVTEFloat32, dtype)
}

/// Distances where both are finite; elsewhere equal bits, of infinities and of what nobody wrote.
fn near_or_same(name: &str, dtype: NVTEDType, bound: f64, cpu: &[u8], cuda: &[u8]) -> Check {
    let (a, b) = (decode(cpu, dtype), decode(cuda, dtype));
    let relative = bound.min(0.3) + spacing(dtype).0;
    for (i, (&a, &b)) in a.iter().zip(&b).enumerate() {
        let allowed = bound + relative * f64::from(a.abs());
        let fits = (f64::from(a) - f64::from(b)).abs() <= allowed;
        if !fits && a.to_bits() != b.to_bits() {
            return Err(format!("{name}[{i}]: cpu {a:e}, cuda {b:e}, allowed {allowed:e}"));
        }
    }
    Ok(())
}

/// The workspace of a pass on CUDA, or why it is declined.
fn plan(case: &Case, buffers: &Buffers, backward: bool) -> Result<Result<usize, String>, String> {
    let side = Side::open(cuda_table()?, buffers)?;
    let mut plan = AttentionPlan {
        explain: false,
        workspace_bytes: 0,
        implementation: 0,
        name: null(),
        rejected: null(),
    };
    let entry = side.table.attention_plan.expect("table entry");
    // SAFETY: the arguments describe the buffers of the case.
    let outcome = unsafe { entry(&case.args(&side, backward), &mut plan) };
    if outcome.status() == BackendStatus::NVTEX_BACKEND_UNIMPLEMENTED {
        return Ok(Err(reason(outcome)));
    }
    ok(outcome, "plan")?;
    Ok(Ok(plan.workspace_bytes))
}

fn pass(
    case: &mut Case,
    buffers: &mut Buffers,
    backward: bool,
    declined: &mut BTreeMap<String, usize>,
) -> Check {
    let outputs = case.outputs(backward);
    let call = |case: &Case, side: &Side| run_attention(side, case.args(side, backward));
    let cpu = run(cpu_table(), buffers, &|side| call(case, side))?;
    match plan(case, buffers, backward)? {
        Ok(bytes) => {
            case.workspace_bytes = bytes;
            buffers.0[case.workspace.0].bytes = vec![0xCD; bytes];
        }
        Err(why) => {
            *declined.entry(why).or_default() += 1;
            return keep_forward(case, buffers, &cpu, backward);
        }
    }
    let cuda = run(cuda_table()?, buffers, &|side| call(case, side))?;
    if cuda.unimplemented() {
        return Err(format!("the plan accepts, the run does not: {}", cuda.reason));
    }
    let written = outputs.iter().filter_map(|output| output.2).chain([case.workspace]);
    unchanged(buffers, &cuda.contents, written)?;
    for &(name, dtype, id, bound) in &outputs {
        let Id(id) = id.expect("an output");
        near_or_same(name, dtype, bound, &cpu.contents[id], &cuda.contents[id])?;
    }
    if backward {
        largest_of_gradients(case, buffers, &cpu).map_err(|e| format!("cpu: {e}"))?;
        largest_of_gradients(case, buffers, &cuda).map_err(|e| format!("cuda: {e}"))?;
    }
    keep_forward(case, buffers, &cpu, backward)
}

/// The amax of gradients, if it is wanted, is that of what is written, exactly, or what was there before.
fn largest_of_gradients(case: &Case, buffers: &Buffers, answer: &Answer) -> Check {
    let Some(Id(amax)) = case.grads_amax else { return Ok(()) };
    // Rows of nobody stay as they are.
    if case.sides.iter().any(|side| side.starts.is_some()) {
        return Ok(());
    }
    let values = case.tensors[5..]
        .iter()
        .flat_map(|place| decode(&answer.contents[place.id.0], place.dtype));
    let before = decode(&buffers.0[amax].bytes, kNVTEFloat32)[0];
    let want = values.fold(before, |most, value| most.max(value.abs()));
    match decode(&answer.contents[amax], kNVTEFloat32)[0] {
        got if got == want => Ok(()),
        got => Err(format!("the amax of gradients is {got:e}, that of what was written {want:e}")),
    }
}

/// The results of the forward pass that the backward pass reads are those of the CPU on both sides.
fn keep_forward(case: &Case, buffers: &mut Buffers, cpu: &Answer, backward: bool) -> Check {
    if !backward {
        for Id(id) in [case.tensors[3].id, case.stats] {
            buffers.0[id].bytes.clone_from(&cpu.contents[id]);
        }
    }
    buffers.0[case.workspace.0].bytes.clear();
    Ok(())
}

#[test]
fn attention() {
    let mut declined = BTreeMap::new();
    cases("attention", 300, |rng, _| {
        let mut b = Buffers::default();
        let mut case = Case::new(rng, &mut b);
        for backward in [false, true] {
            case.workspace_bytes = 0;
            pass(&mut case, &mut b, backward, &mut declined).map_err(|e| {
                let (o, [q, kv]) = (&case.options, &case.sides);
                format!(
                    "{:?}->{:?} b{} h{}/{} s{},{} d{:?} packed {} padded {} window {},{} br {} bias {} alibi {} \
                     sink {} dropout {}, backward {backward}: {e}",
                    case.dtype,
                    case.tensors[3].dtype,
                    case.batch,
                    q.heads,
                    kv.heads,
                    q.length,
                    kv.length,
                    case.dims,
                    q.starts.is_some(),
                    q.cu_seqlens.is_some(),
                    o.window_left,
                    o.window_right,
                    o.bottom_right,
                    case.bias.is_some(),
                    o.alibi,
                    case.sink.is_some(),
                    o.dropout
                )
            })?;
        }
        Ok(())
    });
    for (why, count) in declined {
        println!("attention: {count} passes declined: {why}");
    }
}

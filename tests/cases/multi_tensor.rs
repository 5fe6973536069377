//! Operators on lists of tensors.

use super::*;

/// The buffers of one tensor, in the order of the lists, and its elements.
struct Tensor {
    data: Vec<Option<Id>>,
    numel: usize,
}

fn numels(rng: &mut Rng) -> Vec<usize> {
    let (count, most) = rng.pick(&[(1, 200_000), (3, 70_000), (7, 20_000), (400, 300)]);
    (0..count).map(|_| rng.within(1, most)).collect()
}

/// All buffers aligned, all off by the same number of elements, or each by its own.
fn shifts(rng: &mut Rng, count: usize) -> Vec<usize> {
    let one = rng.within(0, 9);
    match rng.below(3) {
        0 => vec![0; count],
        1 => vec![one; count],
        _ => (0..count).map(|_| rng.within(0, 9)).collect(),
    }
}

fn entries(side: &Side, tensors: &[Tensor]) -> Vec<MultiTensor> {
    let entry = |tensor: &Tensor| {
        let mut data = [null_mut(); 8];
        for (data, &id) in data.iter_mut().zip(&tensor.data) {
            *data = side.maybe(id);
        }
        MultiTensor { data, numel: tensor.numel }
    };
    tensors.iter().map(entry).collect()
}

/// Every buffer of the listed kinds, to be compared.
fn outputs<'a>(
    tensors: &[Tensor],
    kinds: &[(&'a str, NVTEDType)],
) -> Vec<(&'a str, NVTEDType, Option<Id>)> {
    let of = |tensor: &Tensor| -> Vec<_> {
        kinds.iter().zip(&tensor.data).map(|(&(name, dtype), &id)| (name, dtype, id)).collect()
    };
    tensors.iter().flat_map(of).collect()
}

fn integer(b: &mut Buffers, value: i32) -> Id {
    b.add(value.to_le_bytes().to_vec(), 0)
}

pub fn adam(rng: &mut Rng, index: usize) -> Case {
    use AdamMaster::*;
    let grad_dtype = HIGH[index % 3];
    let (param_dtype, master) = match index / 3 % 9 {
        kind @ 0..3 => (HIGH[kind], NVTEX_ADAM_NO_MASTER),
        kind @ 3..6 => (HIGH[kind - 3], NVTEX_ADAM_FLOAT_MASTER),
        6 => (kNVTEBFloat16, NVTEX_ADAM_REMAINDER),
        kind => (FP8[kind - 7], NVTEX_ADAM_FLOAT_MASTER),
    };
    let fp8 = is_fp8(param_dtype);
    let moment_dtype = match fp8 {
        true => kNVTEFloat32,
        false => rng.pick(&[kNVTEFloat32, kNVTEBFloat16, kNVTEFloat8E4M3]),
    };
    let fp8_moments = is_fp8(moment_dtype);
    let mut kinds =
        vec![("g", grad_dtype), ("p", param_dtype), ("m", moment_dtype), ("v", moment_dtype)];
    match master {
        NVTEX_ADAM_NO_MASTER => {}
        NVTEX_ADAM_FLOAT_MASTER => kinds.push(("master", kNVTEFloat32)),
        NVTEX_ADAM_REMAINDER => kinds.push(("remainder", kNVTEInt16)),
    }
    let lists = kinds.len();
    if fp8_moments {
        kinds.resize(5, ("no master", kNVTEFloat32));
        kinds.extend(["scale of m", "scale of root"].map(|name| (name, kNVTEFloat32)));
    }
    if fp8 {
        kinds.extend(["scale", "amax", "scale_inv"].map(|name| (name, kNVTEFloat32)));
    }
    let mut b = Buffers::default();
    let mut tensors = Vec::new();
    for numel in numels(rng) {
        let shifts = shifts(rng, lists);
        let mut data: Vec<_> = kinds[..lists]
            .iter()
            .zip(shifts)
            .map(|(&(_, dtype), shift)| {
                let bytes = match dtype {
                    kNVTEInt16 => rng.bytes(2 * numel),
                    _ => rng.floats(dtype, numel),
                };
                Some(b.add(bytes, shift * size(dtype)))
            })
            .collect();
        if fp8_moments {
            data.resize(5, None);
            let blocks = numel.div_ceil(AdamArgs::MOMENT_BLOCK);
            let scale = |rng: &mut Rng| f32::from_bits((rng.within(100, 140) as u32) << 23);
            for _ in 0..2 {
                let scales: Vec<f32> = (0..blocks).map(|_| scale(rng)).collect();
                data.push(Some(b.floats(scales)));
            }
        }
        if fp8 {
            let scale = rng.scale();
            let amax = rng.pick(&[0.0, 1e-3, 1e30]);
            let fields = [scale, amax, -7.0].map(|x| rng.chance(80).then(|| b.float(x)));
            data.extend(fields);
        }
        tensors.push(Tensor { data, numel });
    }
    let capturable = fp8_moments || rng.chance(40);
    let stored = !fp8_moments && rng.chance(50);
    let (lr, step) = (rng.pick(&[0.0, 1e-3, 0.5]), rng.within(1, 5000) as i32);
    let device_lr = capturable.then(|| b.float(lr));
    let device_step = capturable.then(|| integer(&mut b, step));
    let inv_scale = (capturable && stored).then(|| b.float(0.3));
    let grad_scale = (capturable && !stored).then(|| b.float(0.3));
    let noop = capturable.then(|| integer(&mut b, [0, 0, 1, 2][index % 4]));
    let (beta1, beta2) = (rng.pick(&[0.9, 0.0, 0.999_999]), rng.pick(&[0.999, 0.5]));
    let [bias1, bias2] = match rng.chance(70) && !capturable {
        true => [beta1, beta2].map(|beta| AdamArgs::bias_correction(beta, step)),
        false => [1.0; 2],
    };
    let weight_decay = rng.pick(&[0.0, 0.1, 0.01]);
    let l2 = rng.chance(50);
    Case::bits(
        format!("{grad_dtype:?}, {param_dtype:?}, {moment_dtype:?}, {master:?}, {capturable}"),
        b,
        &outputs(&tensors, &kinds),
        move |side| {
            let entries = entries(side, &tensors);
            let args = AdamArgs {
                tensors: entries.as_ptr(),
                num_tensors: entries.len(),
                lr,
                beta1,
                beta2,
                epsilon: 1e-8,
                weight_decay,
                bias1,
                bias2,
                device_lr: side.maybe(device_lr),
                device_step: side.maybe(device_step),
                inv_scale: side.maybe(inv_scale),
                noop: side.maybe(noop),
                l2,
                master,
                grad_dtype,
                param_dtype,
                moment_dtype,
                grad_scale: side.maybe(grad_scale),
            };
            entry(side, side.table.adam, args)
        },
    )
}

pub fn sgd(rng: &mut Rng, index: usize) -> Case {
    let grad_dtype = HIGH[index % 3];
    let (weight_dtype, copy_dtype) = match index / 3 % 4 {
        0 => (grad_dtype, None),
        1 => (kNVTEFloat32, None),
        kind => (kNVTEFloat32, Some(HIGH[kind - 1])),
    };
    let mut kinds = vec![("g", grad_dtype), ("w", weight_dtype), ("b", weight_dtype)];
    kinds.extend(copy_dtype.map(|dtype| ("copy", dtype)));
    let mut b = Buffers::default();
    let mut tensors = Vec::new();
    for numel in numels(rng) {
        let shifts = shifts(rng, kinds.len());
        let data = kinds
            .iter()
            .zip(shifts)
            .map(|(&(_, dtype), shift)| Some(b.add(rng.floats(dtype, numel), shift * size(dtype))));
        tensors.push(Tensor { data: data.collect(), numel });
    }
    let noop = integer(&mut b, [0, 0, 0, 3][rng.below(4)]);
    let device_lr = rng.chance(40).then(|| b.float(0.02));
    let grad_scale = rng.chance(40).then(|| b.float(0.3));
    let (momentum, weight_decay) = (rng.pick(&[0.0, 0.9]), rng.pick(&[0.0, 0.1]));
    let [nesterov, first_run, decay_after_momentum] = [30, 30, 50].map(|p| rng.chance(p));
    Case::bits(
        format!("{grad_dtype:?}, {weight_dtype:?}, {copy_dtype:?}"),
        b,
        &outputs(&tensors, &kinds),
        move |side| {
            let entries = entries(side, &tensors);
            let args = SgdArgs {
                tensors: entries.as_ptr(),
                num_tensors: entries.len(),
                lr: 0.03,
                momentum,
                dampening: 0.2,
                weight_decay,
                scale: 0.7,
                nesterov,
                first_run,
                decay_after_momentum,
                noop: side.at(noop),
                grad_dtype,
                weight_dtype,
                copy_dtype: copy_dtype.unwrap_or(kNVTEFloat16),
                device_lr: side.maybe(device_lr),
                grad_scale: side.maybe(grad_scale),
            };
            entry(side, side.table.sgd, args)
        },
    )
}

pub fn scale_tensors(rng: &mut Rng, index: usize) -> Case {
    let (input_dtype, output_dtype) = (HIGH[index % 3], HIGH[index / 3 % 3]);
    let in_place = input_dtype == output_dtype && rng.chance(40);
    let mut b = Buffers::default();
    let mut tensors = Vec::new();
    for numel in numels(rng) {
        let shifts = shifts(rng, 2);
        let x = b.add(rng.floats(input_dtype, numel), shifts[0] * size(input_dtype));
        let y = match in_place {
            true => x,
            false => {
                let width = size(output_dtype);
                b.add(vec![0xCD; numel * width], shifts[1] * width)
            }
        };
        tensors.push(Tensor { data: vec![Some(x), Some(y)], numel });
    }
    let scale = rng.scale();
    let device_scale = rng.chance(50).then(|| b.float(scale));
    let non_finite = integer(&mut b, 0);
    let mut written = outputs(&tensors, &[("x", input_dtype), ("y", output_dtype)]);
    written.retain(|output| output.0 == "y");
    written.push(("flag", kNVTEInt32, Some(non_finite)));
    Case::bits(
        format!("{input_dtype:?} to {output_dtype:?}, {in_place}"),
        b,
        &written,
        move |side| {
            let entries = entries(side, &tensors);
            let args = ScaleTensorsArgs {
                tensors: entries.as_ptr(),
                num_tensors: entries.len(),
                scale,
                device_scale: side.maybe(device_scale),
                non_finite: side.at(non_finite),
                input_dtype,
                output_dtype,
            };
            entry(side, side.table.scale_tensors, args)
        },
    )
}

pub fn l2_norm(rng: &mut Rng, index: usize) -> Case {
    let dtype = HIGH[index % 3];
    let mut b = Buffers::default();
    let mut tensors = Vec::new();
    for numel in numels(rng) {
        let numel = if rng.chance(10) { 0 } else { numel };
        let shift = shifts(rng, 1)[0];
        let values: Vec<u8> = (0..numel).flat_map(|_| rng.unit().to_le_bytes()).collect();
        let x = b.add(cast(&values, kNVTEFloat32, dtype), shift * size(dtype));
        tensors.push(Tensor { data: vec![Some(x)], numel });
    }
    let (each, chunk) = (rng.chance(50), rng.pick(&[333, 33333, 65536]));
    let chunks = tensors.iter().map(|t| t.numel.div_ceil(chunk)).max().unwrap();
    let inv_scale = rng.chance(50).then(|| b.float(0.3));
    let workspace = b.floats([f32::NAN; 320]);
    let tensor_workspace = b.floats(vec![0.0; tensors.len() * chunks]);
    let (norm, non_finite) = (b.float(-7.0), integer(&mut b, 0));
    let tensor_norms = each.then(|| b.floats(vec![-7.0; tensors.len()]));
    let norms = Expect::Relative(1e-6);
    let outputs = [
        Output::bits("flag", kNVTEInt32, non_finite),
        Output::new("norm", kNVTEFloat32, norm, norms),
        Output::new("norms of tensors", kNVTEFloat32, tensor_norms, norms),
    ];
    Case::new(format!("{dtype:?}, each {each}"), b, outputs, move |side| {
        let entries = entries(side, &tensors);
        let args = L2NormArgs {
            tensors: entries.as_ptr(),
            num_tensors: entries.len(),
            inv_scale: side.maybe(inv_scale),
            norm: side.at(norm),
            tensor_norms: side.maybe(tensor_norms),
            workspace: side.at(workspace),
            partials: 320,
            tensor_workspace: side.at(tensor_workspace),
            chunks,
            chunk,
            non_finite: side.at(non_finite),
            dtype,
        };
        entry(side, side.table.l2_norm, args)
    })
    .scratch([workspace, tensor_workspace])
}

pub fn scales_from_amax(rng: &mut Rng, index: usize) -> Case {
    let e8m0 = index.is_multiple_of(3);
    let (amax_dtype, kinds) = match e8m0 {
        true => (kNVTEBFloat16, vec![("code", kNVTEByte)]),
        false => (kNVTEFloat32, ["scale", "scale_inv"].map(|n| (n, kNVTEFloat32)).into()),
    };
    let mut b = Buffers::default();
    let (mut tensors, mut written) = (Vec::new(), Vec::new());
    for numel in numels(rng) {
        let numel = if rng.chance(70) { 1 } else { numel };
        let mut amax = rng.floats(amax_dtype, numel);
        amax.chunks_exact_mut(size(amax_dtype)).for_each(|x| *x.last_mut().unwrap() &= 0x7F);
        let mut data = vec![Some(b.add(amax, 0))];
        for &(name, dtype) in &kinds {
            let id = Some(b.output(rng, dtype, numel));
            data.push(id);
            written.push((name, dtype, id));
        }
        tensors.push(Tensor { data, numel });
    }
    let (fp8_max, epsilon) = (rng.pick(&[448.0, 57344.0]), rng.pick(&[0.0, 1e-12, 100.0]));
    let pow2 = rng.chance(50);
    Case::bits(format!("e8m0 {e8m0}, epsilon {epsilon:e}, pow2 {pow2}"), b, &written, move |side| {
        let entries = entries(side, &tensors);
        let args = ScalesFromAmaxArgs {
            tensors: entries.as_ptr(),
            num_tensors: entries.len(),
            fp8_max,
            epsilon,
            pow2,
            e8m0,
        };
        entry(side, side.table.scales_from_amax, args)
    })
}

/// Sums of two tensors, which are lists of one.
pub fn add(rng: &mut Rng, index: usize) -> Case {
    let (src_dtype, dst_dtype) = (HIGH[index % 3], HIGH[index / 3 % 3]);
    let numel = rng.within(1, 200_000) * rng.pick(&[1, 8]);
    let shifts = shifts(rng, 2);
    let mut b = Buffers::default();
    let src = b.add(rng.floats(src_dtype, numel), shifts[0] * size(src_dtype));
    let dst = b.add(rng.floats(dst_dtype, numel), shifts[1] * size(dst_dtype));
    let what = format!("{src_dtype:?} to {dst_dtype:?}, {numel}");
    Case::bits(what, b, &[("dst", dst_dtype, Some(dst))], move |side| {
        let (src, dst) = (side.at(src), side.at(dst));
        entry(side, side.table.add, AddArgs { src, dst, numel, src_dtype, dst_dtype })
    })
}

pub fn step_numbers(rng: &mut Rng, index: usize) -> Case {
    use RateRule::*;
    let schedule = [NVTEX_RATE_CONSTANT, NVTEX_RATE_LINEAR, NVTEX_RATE_COSINE][index % 3];
    let mut b = Buffers::default();
    let integers = [rng.within(0, 40), rng.below(2), rng.below(3), rng.below(4), rng.below(5) / 4];
    let floats = [1e-3, -7.0, rng.pick(&[1.0, 1024.0, 65536.0]), -7.0, -7.0_f32];
    let mut image: Vec<u8> =
        integers.iter().flat_map(|&number| (number as i32).to_le_bytes()).collect();
    image.extend(floats.iter().flat_map(|number| number.to_le_bytes()));
    let numbers = b.add(image, 0);
    let large = rng.pick(&[1.0, 1.0, 1e30, f32::INFINITY, f32::NAN]);
    let norms: Vec<f32> = (0..rng.below(4)).map(|_| rng.unit().abs() * large).collect();
    let num_norms = norms.len();
    let norms = b.floats(norms);
    let factors: Vec<f32> = (0..rng.within(1, 70)).map(|_| rng.unit()).collect();
    let num_rates = factors.len();
    let factors = b.floats(factors);
    let rates = b.floats(vec![-7.0; num_rates]);
    let (warmup_steps, max_norm) = (rng.below(12) as i32, rng.pick(&[0.0, 0.1, 100.0]));
    let (last, growth_interval) = (rng.pick(&[0.0, 0.1]), rng.below(4) as i32);
    let total_steps = warmup_steps + rng.within(1, 30) as i32;
    let outputs = [
        Output::bits("numbers", kNVTEFloat32, numbers),
        Output::bits("rates", kNVTEFloat32, rates),
    ];
    Case::new(format!("{schedule:?}, {num_norms} norms"), b, outputs, move |side| {
        let args = StepNumbersArgs {
            numbers: side.at(numbers),
            norms: side.at(norms),
            num_norms,
            factors: side.at(factors),
            rates: side.at(rates),
            num_rates,
            factor: 0.5,
            max_norm,
            schedule,
            warmup_steps,
            total_steps,
            last,
            growth: 2.0,
            backoff: 0.5,
            growth_interval,
            least_scale: 1.0,
            most_scale: 65536.0,
        };
        entry(side, side.table.step_numbers, args)
    })
}

pub fn muon(rng: &mut Rng, index: usize) -> Case {
    use MuonPart::*;
    let part = [NVTEX_MUON_MOMENTUM, NVTEX_MUON_NORMALIZE][index % 2];
    let grad_dtype = HIGH[index / 2 % 3];
    let kinds = match part {
        NVTEX_MUON_MOMENTUM => {
            vec![("g", grad_dtype), ("b", kNVTEFloat32), ("u", kNVTEBFloat16)]
        }
        NVTEX_MUON_NORMALIZE => vec![("u", kNVTEBFloat16)],
    };
    let mut b = Buffers::default();
    let mut tensors = Vec::new();
    for numel in numels(rng) {
        let shifts = shifts(rng, kinds.len());
        let data = kinds
            .iter()
            .zip(shifts)
            .map(|(&(_, dtype), shift)| Some(b.add(rng.floats(dtype, numel), shift * size(dtype))));
        tensors.push(Tensor { data: data.collect(), numel });
    }
    let norms = b.floats((0..tensors.len()).map(|_| rng.unit()));
    let (grad_scale, noop) = (b.float(0.3), integer(&mut b, [0, 0, 0, 1][rng.below(4)]));
    let nesterov = rng.chance(50);
    Case::bits(
        format!("{part:?}, {grad_dtype:?}, {nesterov}"),
        b,
        &outputs(&tensors, &kinds),
        move |side| {
            let entries = entries(side, &tensors);
            let args = MuonArgs {
                tensors: entries.as_ptr(),
                num_tensors: entries.len(),
                part,
                momentum: 0.95,
                nesterov,
                epsilon: 1e-7,
                grad_scale: side.at(grad_scale),
                noop: side.at(noop),
                norms: side.at(norms),
                grad_dtype,
            };
            entry(side, side.table.muon, args)
        },
    )
}

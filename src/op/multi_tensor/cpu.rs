//! Reference of the operators on many tensors (spec optim_nvfp4, sections 2 to 6).
#![allow(unsafe_code)]

use crate::backend::args::*;
use crate::backend::buf::{Buf, load, store};
use crate::backend::cpu::{scale_of, vectorized};
use crate::backend::memory;
use crate::backend::pool::{chunks, chunks_mut, parallel};
use crate::error::Result;
use crate::numeric::{BF16, E4M3, Element, amax_bits, dispatch};
use crate::op::cast::cpu_block::e8m0;
use crate::random::philox_of;
use crate::types::{NVTEDType, cudaStream_t};
use std::ffi::c_void;
use std::ops::Range;

/// Elements that are held as floats at a time.
pub(super) const BLOCK: usize = 256;
const ADDED_PER_TASK: usize = 1 << 14;
pub(super) type Block = [f32; BLOCK];

/// # Safety
/// The arguments of a call are valid.
pub(super) unsafe fn tensors<'a>(tensors: *const MultiTensor, count: usize) -> &'a [MultiTensor] {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe { Buf::<MultiTensor>::new(tensors.cast(), count).slice(0, count) }
}

/// One tensor of a call, for all threads.
pub(super) struct Data<'a, A> {
    pub(super) args: &'a A,
    tensor: &'a MultiTensor,
}

// SAFETY: numbers and addresses; each range of elements is used by one task.
unsafe impl<A> Sync for Data<'_, A> {}

impl<'a, A> Data<'a, A> {
    pub(super) fn of(args: &'a A, tensors: &'a [MultiTensor]) -> Vec<Self> {
        memory::collect(tensors.iter().map(|tensor| Self { args, tensor }))
    }

    fn at(&self, i: usize) -> *mut c_void {
        self.tensor.data[i]
    }

    /// # Safety
    /// Buffer `i` has that dtype and those elements, which nobody else writes.
    pub(super) unsafe fn load(
        &self,
        i: usize,
        dtype: NVTEDType,
        range: Range<usize>,
        to: &mut Block,
    ) {
        dispatch!(dtype, [F32, F16, BF16], T => {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let from = unsafe {
                let all = Buf::<T>::new(self.at(i), range.end);
                // The next block, whose loads would begin only after this one is computed.
                all.prefetch(range.end, BLOCK);
                all.slice(range.start, range.len())
            };
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
        }, else unreachable!("checked by the plan"))
    }

    /// # Safety
    /// Buffer `i` has that dtype and those elements, which nobody else uses.
    pub(super) unsafe fn store(
        &self,
        i: usize,
        dtype: NVTEDType,
        range: Range<usize>,
        from: &Block,
    ) {
        dispatch!(dtype, [F32, F16, BF16, E4M3, E5M2], T => {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let to = unsafe {
                Buf::<T>::new(self.at(i), range.end).slice_mut(range.start, range.len())
            };
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = T::from_f32(from));
        }, else unreachable!("checked by the plan"))
    }
}

fn blocks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(BLOCK).map(move |start| start..range.end.min(start + BLOCK))
}

/// The largest result of `work` over blocks of elements of all tensors, in parallel.
pub(super) fn for_each<A>(
    tensors: &[Data<A>],
    work: impl Fn(&Data<A>, Range<usize>) -> u32 + Sync + Send,
) -> u32 {
    let largest = tensors.iter().map(|data| {
        let (tasks, range) = chunks(data.tensor.numel);
        parallel(tasks).max_init(
            || (),
            |(), task| blocks(range(task)).map(|block| work(data, block)).max().unwrap_or(0),
        )
    });
    largest.max().unwrap_or(0)
}

vectorized! {
    /// One step of Adam: gradients, which are multiplied by `scale`, parameters and moments, which are as many.
    fn adam_step(
        a: &AdamArgs,
        g: &[f32],
        scale: f32,
        p: &mut [f32],
        m: &mut [f32],
        v: &mut [f32],
    ) {
        let (rest1, rest2) = (1.0 - a.beta1, 1.0 - a.beta2);
        let (inv_bias1, inv_bias2) = (1.0 / a.bias1, 1.0 / a.bias2);
        for (((&g, p), m), v) in g.iter().zip(p).zip(m).zip(v) {
            let g = g * scale;
            let g = if a.l2 { g + a.weight_decay * *p } else { g };
            *m = a.beta1 * *m + rest1 * g;
            *v = a.beta2 * *v + (rest2 * g) * g;
            let u = (*m * inv_bias1) / ((*v * inv_bias2).sqrt() + a.epsilon);
            let u = if a.l2 { u } else { u + a.weight_decay * *p };
            *p -= a.lr * u;
        }
    }
}

/// A step where everything is float32. Without copies of blocks, square roots and quotients are computed while memory is
/// read and written.
///
/// # Safety
/// The arguments have these buffers, of float32 and apart from each other; the range belongs to one task.
unsafe fn adam_in_place(data: &Data<AdamArgs>, scale: f32, range: Range<usize>) {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        let all = [0, 1, 2, 3].map(|i| Buf::<f32>::new(data.at(i), range.end));
        let [p, m, v] = [1, 2, 3].map(|i| all[i].slice_mut(range.start, range.len()));
        adam_step(data.args, all[0].slice(range.start, range.len()), scale, p, m, v);
    }
}

pub(crate) unsafe extern "C-unwind" fn adam(args: *const AdamArgs, _: cudaStream_t) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let mut a = unsafe { *args };
    // SAFETY: the caller vouches for the arguments: the numbers on the device are there.
    let (tensors, scales) = unsafe {
        if load(a.noop) == Some(1) {
            return Outcome::OK;
        }
        a.lr = load(a.device_lr).unwrap_or(a.lr);
        let grad_scale = load(a.grad_scale);
        if let Some(step) = load(a.device_step) {
            a.bias1 = AdamArgs::bias_correction(a.beta1, step);
            a.bias2 = AdamArgs::bias_correction(a.beta2, step);
        }
        (tensors(a.tensors, a.num_tensors), Scales { stored: load(a.inv_scale), grad_scale })
    };
    // SAFETY: the caller vouches for the arguments.
    let step = unsafe { load(a.device_step) }.unwrap_or(0);
    for data in Data::of(&a, tensors) {
        // SAFETY: the caller vouches for the arguments.
        unsafe { adam_of(data, scales, step) };
    }
    Outcome::OK
}

/// Blocks of E4M3 moments of one kind in a range, with their scales: m, or the roots of v.
struct Blocks {
    codes: *mut u8,
    scales: *mut f32,
    range: Range<usize>,
}

impl Blocks {
    const SIZE: usize = AdamArgs::MOMENT_BLOCK;

    fn new<A>(data: &Data<A>, (codes, scales): (usize, usize), range: Range<usize>) -> Self {
        Self { codes: data.at(codes).cast(), scales: data.at(scales).cast(), range }
    }

    /// The elements of the range, block by block.
    fn blocks(&self) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let range = self.range.clone();
        let first = range.start / Self::SIZE;
        (first..range.end.div_ceil(Self::SIZE))
            .map(move |block| (block, block * Self::SIZE..range.end.min((block + 1) * Self::SIZE)))
    }

    /// # Safety
    /// The buffers have these elements, which nobody else writes.
    unsafe fn load(&self, to: &mut Block) {
        for (block, elements) in self.blocks() {
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            let scale = unsafe { self.scales.add(block).read() };
            for i in elements {
                // SAFETY: as for the scales above.
                let code = unsafe { self.codes.add(i).read() };
                to[i - self.range.start] = E4M3(code).to_f32() * scale;
            }
        }
    }

    /// A random word for each element.
    fn random(&self, step: i32) -> [u32; BLOCK] {
        let mut words = [0; BLOCK];
        for (words, (block, _)) in words.chunks_mut(Self::SIZE).zip(self.blocks()) {
            for lane in 0..32 {
                let high = lane as u64 | u64::from(step as u32) << 32;
                let of_lane = words[lane..].iter_mut().step_by(32);
                of_lane.zip(philox_of::<7>(0, block as u64, high)).for_each(|(w, word)| *w = word);
            }
        }
        words
    }

    /// Stores with the 16 bits of the random words from `shift` on.
    ///
    /// # Safety
    /// As [`Self::load`], and nobody else uses the elements.
    unsafe fn store(&self, from: &Block, least: u8, (random, shift): (&[u32; BLOCK], u32)) {
        for (block, elements) in self.blocks() {
            let at = |i: usize| i - self.range.start;
            let largest = |largest: f32, i: usize| largest.max(from[at(i)].abs());
            let exponent = moment_exponent(elements.clone().fold(0.0, largest));
            // SAFETY: the caller keeps to the `# Safety` section of this function.
            unsafe { self.scales.add(block).write(f32::from_bits(exponent << 23)) };
            let inverse = f32::from_bits((254 - exponent) << 23);
            for i in elements {
                let random = random[at(i)] >> shift & 0xFFFF;
                let code = stochastic_e4m3(from[at(i)], inverse, least, random);
                // SAFETY: as for the scales above.
                unsafe { self.codes.add(i).write(code) };
            }
        }
    }
}

/// Numbers of E4M3 moments of one kind: m, or v, which is stored as its root.
pub(crate) fn decode_moments(codes: &[u8], scales: &[f32], roots: bool) -> Result<Vec<f32>> {
    let mut values = memory::reserve("moments", codes.len())?;
    for (codes, &scale) in codes.chunks(Blocks::SIZE).zip(scales) {
        let decoded = codes.iter().map(|&code| E4M3(code).to_f32() * scale);
        values.extend(decoded.map(|x| if roots { x * x } else { x }));
    }
    Ok(values)
}

/// Codes and scales of moments, rounded to the nearest. Numbers that were decoded become what they were made of.
pub(crate) fn encode_moments(values: &[f32], roots: bool) -> Result<(Vec<u8>, Vec<f32>)> {
    let mut codes = memory::reserve("codes of moments", values.len())?;
    let mut scales = memory::reserve("scales of moments", values.len().div_ceil(Blocks::SIZE))?;
    for block in values.chunks(Blocks::SIZE) {
        let stored = |&x: &f32| if roots { x.sqrt() } else { x };
        let largest = block.iter().map(stored).fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let exponent = moment_exponent(largest);
        let inverse = f32::from_bits((254 - exponent) << 23);
        scales.push(f32::from_bits(exponent << 23));
        codes.extend(block.iter().map(stored).map(|x| {
            let code = E4M3::from_f32(x * inverse).0;
            if roots && x > 0.0 { code.max(1) } else { code }
        }));
    }
    Ok((codes, scales))
}

/// The exponent, with its bias, of the scale for a block whose largest magnitude this is.
fn moment_exponent(largest: f32) -> u32 {
    let bits = largest.to_bits();
    // 448 is 1.75 * 2^8.
    let exponent = (bits >> 23) + u32::from(bits & 0x7F_FFFF > 0x60_0000);
    exponent.saturating_sub(8).max(1)
}

/// The code of a number times a power of two, rounded up if its bits below the code and a random number of 16 bits, with
/// half of its last bit, carry.
fn stochastic_e4m3(x: f32, inverse: f32, least: u8, random: u32) -> u8 {
    let magnitude = x.abs() * inverse;
    let random = random << 4 | 8;
    if !magnitude.is_finite() {
        return 0x7F;
    }
    let code = match magnitude >= 0.015_625 {
        true => ((magnitude.to_bits() + random) >> 20) - (120 << 3),
        // Multiples of 2^-9, with 20 bits behind the point.
        false => ((magnitude * 536_870_912.0) as u32 + random) >> 20,
    };
    let least = if magnitude > 0.0 { least } else { 0 };
    (x.to_bits() >> 24) as u8 & 0x80 | (code.min(0x7E) as u8).max(least)
}

/// What gradients are multiplied by.
#[derive(Clone, Copy)]
struct Scales {
    /// The product is stored in place of the gradient.
    stored: Option<f32>,
    grad_scale: Option<f32>,
}

/// # Safety
/// The arguments are valid.
unsafe fn adam_of(data: Data<AdamArgs>, scales: Scales, step: i32) {
    let (tensor, fp8) = (data.tensor, data.args.param_dtype.is_fp8());
    // SAFETY: FP8 parameters have these floats.
    let scale = if fp8 { unsafe { load(tensor.data[5].cast::<f32>()) } } else { None };
    let scale = scale.unwrap_or(1.0);
    let grad_scale = scales.grad_scale.unwrap_or(1.0);
    let is_float = |dtype| dtype == NVTEDType::kNVTEFloat32;
    let a = data.args;
    // Tensors of one place may be the same memory, which slices must not be.
    let apart = (1..4).all(|i| !tensor.data[..i].contains(&tensor.data[i]));
    let in_place = apart
        && a.master == AdamMaster::NVTEX_ADAM_NO_MASTER
        && scales.stored.is_none()
        && [a.grad_dtype, a.param_dtype, a.moment_dtype].into_iter().all(is_float);
    if in_place {
        for_each(&[data], |data, range| {
            // SAFETY: the arguments have buffers of float32, which are apart; a range belongs to one task.
            unsafe { adam_in_place(data, grad_scale, range) };
            0
        });
        return;
    }
    let amax = for_each(&[data], |data, range| {
        let a = data.args;
        let [mut g, mut p, mut m, mut v] = [[0.0; BLOCK]; 4];
        let mut amax = 0;
        // SAFETY: the arguments have these buffers and dtypes; a range belongs to one task.
        unsafe {
            data.load(0, a.grad_dtype, range.clone(), &mut g);
            if a.moment_dtype.is_fp8() {
                Blocks::new(data, (2, 5), range.clone()).load(&mut m);
                Blocks::new(data, (3, 6), range.clone()).load(&mut v);
                v.iter_mut().for_each(|v| *v *= *v);
            } else {
                data.load(2, a.moment_dtype, range.clone(), &mut m);
                data.load(3, a.moment_dtype, range.clone(), &mut v);
            }
            match a.master {
                AdamMaster::NVTEX_ADAM_NO_MASTER => {
                    data.load(1, a.param_dtype, range.clone(), &mut p);
                }
                AdamMaster::NVTEX_ADAM_FLOAT_MASTER => {
                    data.load(4, NVTEDType::kNVTEFloat32, range.clone(), &mut p);
                }
                AdamMaster::NVTEX_ADAM_REMAINDER => {
                    for (p, (high, low)) in p.iter_mut().zip(halves(data, range.clone())) {
                        *p = join(*high, *low);
                    }
                }
            }
            if let Some(scale) = scales.stored {
                g.iter_mut().for_each(|g| *g *= scale);
                data.store(0, a.grad_dtype, range.clone(), &g);
            }
            let rest = if scales.stored.is_some() { 1.0 } else { grad_scale };
            adam_step(a, &g, rest, &mut p, &mut m, &mut v);
            if a.moment_dtype.is_fp8() {
                let m_blocks = Blocks::new(data, (2, 5), range.clone());
                let random = m_blocks.random(step);
                m_blocks.store(&m, 0, (&random, 0));
                v.iter_mut().for_each(|v| *v = v.sqrt());
                Blocks::new(data, (3, 6), range.clone()).store(&v, 1, (&random, 16));
            } else {
                data.store(2, a.moment_dtype, range.clone(), &m);
                data.store(3, a.moment_dtype, range.clone(), &v);
            }
            match a.master {
                AdamMaster::NVTEX_ADAM_NO_MASTER => {}
                AdamMaster::NVTEX_ADAM_FLOAT_MASTER => {
                    data.store(4, NVTEDType::kNVTEFloat32, range.clone(), &p);
                }
                AdamMaster::NVTEX_ADAM_REMAINDER => {
                    for (p, (high, low)) in p.iter().zip(halves(data, range)) {
                        (*high, *low) = split(*p);
                    }
                    return 0;
                }
            }
            if fp8 {
                amax = p[..range.len()].iter().fold(0, |amax, &p| amax.max(amax_bits(p)));
                p.iter_mut().for_each(|p| *p *= scale);
            }
            data.store(1, a.param_dtype, range, &p);
        }
        amax
    });
    if fp8 {
        // SAFETY: each is null or one float.
        unsafe {
            let old = tensor.data[6].cast::<i32>();
            store(old, load(old).unwrap_or(0).max(amax as i32));
            store(tensor.data[7].cast(), 1.0 / scale);
        }
    }
}

/// Both halves of parameters with remainders.
///
/// # Safety
/// As [`Data::store`] of buffers 1 and 4.
unsafe fn halves<'a, A>(
    data: &Data<A>,
    range: Range<usize>,
) -> impl Iterator<Item = (&'a mut u16, &'a mut u16)> {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let [high, low] = [1, 4].map(|i| unsafe {
        Buf::<u16>::new(data.at(i), range.end).slice_mut(range.start, range.len())
    });
    high.iter_mut().zip(low)
}

fn join(high: u16, low: u16) -> f32 {
    let high = high.wrapping_sub(low >> 15);
    f32::from_bits(u32::from(high) << 16 | u32::from(low))
}

fn split(master: f32) -> (u16, u16) {
    // A NaN becomes one whose high half is NaN, too.
    let bits = if master.is_nan() { 0x7FC0_0000 } else { master.to_bits() };
    let low = bits as u16;
    (((bits >> 16) as u16).wrapping_add(low >> 15), low)
}

vectorized! {
    /// Gradients become what is added to the weights, before it is rounded.
    fn sgd_block(a: &SgdArgs, grad_scale: f32, g: &mut Block, w: &Block, b: &mut Block) {
        let decays = a.weight_decay != 0.0;
        let (rest, minus_lr) = (1.0 - a.dampening, -a.lr);
        for i in 0..BLOCK {
            let mut d = g[i] * grad_scale * a.scale;
            if decays && !a.decay_after_momentum {
                d += a.weight_decay * w[i];
            }
            if a.momentum != 0.0 {
                b[i] = if a.first_run { d } else { b[i] * a.momentum + rest * d };
                d = if a.nesterov { d + a.momentum * b[i] } else { b[i] };
            }
            if decays && a.decay_after_momentum {
                d += a.weight_decay * w[i];
            }
            g[i] = minus_lr * d;
        }
    }
}

pub(crate) unsafe extern "C-unwind" fn sgd(args: *const SgdArgs, _: cudaStream_t) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let (a, tensors, grad_scale) = unsafe {
        let mut a = *args;
        if *a.noop != 0 {
            return Outcome::OK;
        }
        a.lr = load(a.device_lr).unwrap_or(a.lr);
        (a, tensors(a.tensors, a.num_tensors), load(a.grad_scale).unwrap_or(1.0))
    };
    let rounded = |dtype, x: &mut Block| {
        dispatch!(dtype, [F16, BF16], T => {
            x.iter_mut().for_each(|x| *x = T::from_f32(*x).to_f32());
        }, else ());
    };
    for_each(&Data::of(&a, tensors), |data, range| {
        let a = data.args;
        let [mut g, mut w, mut b] = [[0.0; BLOCK]; 3];
        // SAFETY: the arguments have these buffers and dtypes; a range belongs to one task.
        unsafe {
            data.load(0, a.grad_dtype, range.clone(), &mut g);
            data.load(1, a.weight_dtype, range.clone(), &mut w);
            if a.momentum != 0.0 && !a.first_run {
                data.load(2, a.weight_dtype, range.clone(), &mut b);
            }
            sgd_block(a, grad_scale, &mut g, &w, &mut b);
            rounded(a.weight_dtype, &mut g);
            w.iter_mut().zip(g).for_each(|(w, g)| *w += g);
            data.store(1, a.weight_dtype, range.clone(), &w);
            if a.momentum != 0.0 {
                data.store(2, a.weight_dtype, range.clone(), &b);
            }
            if !data.at(3).is_null() {
                data.store(3, a.copy_dtype, range, &w);
            }
        }
        0
    });
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn scale_tensors(
    args: *const ScaleTensorsArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let (a, tensors, scale) = unsafe {
        let a = &*args;
        (a, tensors(a.tensors, a.num_tensors), load(a.device_scale).unwrap_or(a.scale))
    };
    let non_finite = for_each(&Data::of(a, tensors), |data, range| {
        let a = data.args;
        let mut x = [0.0; BLOCK];
        // SAFETY: the arguments have these buffers and dtypes; a range belongs to one task.
        unsafe { data.load(0, a.input_dtype, range.clone(), &mut x) };
        let finite = x[..range.len()].iter().all(|x| x.is_finite());
        x.iter_mut().for_each(|x| *x *= scale);
        // SAFETY: output 1 has that dtype and these elements, which belong to this task alone.
        unsafe { data.store(1, a.output_dtype, range, &x) };
        u32::from(!finite)
    });
    if non_finite == 1 {
        // SAFETY: one integer.
        unsafe { a.non_finite.write(1) };
    }
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn l2_norm(
    args: *const L2NormArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let (a, tensors, inv_scale) = unsafe {
        let a = &*args;
        (a, tensors(a.tensors, a.num_tensors), load(a.inv_scale).unwrap_or(1.0))
    };
    // Squares are computed in float32, sums in float64.
    let sum_of = |data: &Data<L2NormArgs>, range: Range<usize>| -> f64 {
        let mut x = [0.0; BLOCK];
        let sums = blocks(range).map(|block| {
            let len = block.len();
            // SAFETY: the arguments have this buffer and dtype.
            unsafe { data.load(0, data.args.dtype, block, &mut x) };
            let squares = x[..len].iter().map(|&x| f64::from((x * inv_scale).powi(2)));
            squares.sum::<f64>()
        });
        sums.sum()
    };
    let (mut total, mut finite) = (0.0, true);
    for (t, data) in Data::of(a, tensors).iter().enumerate() {
        let (tasks, range) = chunks(data.tensor.numel);
        let parts = parallel(tasks).map(|task| sum_of(data, range(task)));
        finite &= parts.iter().all(|&part| (part as f32).is_finite());
        // `sum()` would give -0 for no parts.
        let sum = parts.iter().fold(0.0, |sum, part| sum + part);
        total += sum;
        if !a.tensor_norms.is_null() {
            // SAFETY: one float for each tensor.
            unsafe { a.tensor_norms.add(t).write(sum.sqrt() as f32) };
        }
    }
    // SAFETY: one float and one integer.
    unsafe {
        a.norm.write(total.sqrt() as f32);
        if !finite {
            a.non_finite.write(1);
        }
    }
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn scales_from_amax(
    args: *const ScalesFromAmaxArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let (a, tensors) = unsafe { (&*args, tensors((*args).tensors, (*args).num_tensors)) };
    for data in Data::of(a, tensors) {
        let numel = data.tensor.numel;
        // SAFETY: the lists have as many elements, of the dtypes that the arguments say.
        unsafe {
            if a.e8m0 {
                let amax = Buf::<BF16>::new(data.at(0), numel).slice(0, numel);
                let codes = Buf::<u8>::new(data.at(1), numel).slice_mut(0, numel);
                for (code, amax) in codes.iter_mut().zip(amax) {
                    *code = e8m0(amax.to_f32().abs() * (1.0 / 448.0));
                }
                continue;
            }
            let [amax, scale, scale_inv] = [0, 1, 2].map(|i| Buf::<f32>::new(data.at(i), numel));
            for i in 0..numel {
                let value = scale_of(amax.slice(i, 1)[0], a.fp8_max, a.epsilon, a.pow2, f32::MAX);
                scale.slice_mut(i, 1)[0] = value;
                scale_inv.slice_mut(i, 1)[0] = 1.0 / value;
            }
        }
    }
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn add(args: *const AddArgs, _: cudaStream_t) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.src_dtype, [F32, F16, BF16], S => dispatch!(a.dst_dtype, [F32, F16, BF16], D => {
        // SAFETY: both tensors have these elements and dtypes, and share no memory.
        let (src, dst) = unsafe {
            let src = Buf::<S>::new(a.src, a.numel).slice(0, a.numel);
            (src, Buf::<D>::new(a.dst, a.numel).slice_mut(0, a.numel))
        };
        chunks_mut(dst, ADDED_PER_TASK).for_each(|(task, dst)| {
            for (dst, src) in dst.iter_mut().zip(&src[task * ADDED_PER_TASK..]) {
                *dst = D::from_f32(dst.to_f32() + (0.0 + src.to_f32()));
            }
        });
        Outcome::OK
    }, else Outcome::unimplemented("add: dtype")), else Outcome::unimplemented("add: dtype"))
}

//! What the tests share that run one call on several backends: random values, buffers between
//! guards in the memory of a backend, comparison of what a call left there.

mod geometry;

use geometry::scale_shape;
use nvte::backend::args::*;
use nvte::backend::{cpu_table, cuda_table};
use nvte::types::NVTEDType::{self, *};
use nvte::types::NVTEScalingMode::{self, *};
use nvte::types::cudaStream_t;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::ptr::{null, null_mut};

pub const HIGH: [NVTEDType; 3] = [kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16];
pub const ALL: [NVTEDType; 5] =
    [kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3, kNVTEFloat8E5M2];
pub const FP8: [NVTEDType; 2] = [kNVTEFloat8E4M3, kNVTEFloat8E5M2];
/// Bytes on both sides of a buffer that must not change.
const GUARD: usize = 256;

pub type Check = Result<(), String>;

/// The seed of the generated cases.
pub const SEED: u64 = 0x5EED;

pub fn is_fp8(dtype: NVTEDType) -> bool {
    FP8.contains(&dtype)
}

pub fn size(dtype: NVTEDType) -> usize {
    match dtype {
        kNVTEInt64 => 8,
        kNVTEFloat32 | kNVTEInt32 => 4,
        kNVTEInt16 | kNVTEFloat16 | kNVTEBFloat16 => 2,
        _ => 1,
    }
}

/// xorshift64*. What decides the arguments of a call (shapes, types, options) comes from one sequence; the
/// values of its inputs may come from another, so that a captured call can be replayed on other values.
pub struct Rng {
    state: u64,
    values: Option<u64>,
}

impl Rng {
    /// With a seed of their own, values do not come from the sequence of the arguments.
    pub fn new(name: &str, seed: u64, index: usize, values: Option<u64>) -> Self {
        let hash = name.bytes().fold(seed ^ (index as u64) << 32, |h, b| {
            (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01B3)
        });
        let mut rng = Self { state: hash | 1, values: None };
        (0..8).for_each(|_| _ = rng.next());
        let values = values.map(|seed| Self::new("values", rng.state ^ seed, 0, None).state);
        Self { values, ..rng }
    }

    pub fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Draws values of inputs.
    pub fn values<T>(&mut self, draw: impl FnOnce(&mut Self) -> T) -> T {
        let Some(values) = self.values else { return draw(self) };
        let mut rng = Self { state: values, values: None };
        let drawn = draw(&mut rng);
        self.values = Some(rng.state);
        drawn
    }

    /// A value in [-1, 1).
    pub fn unit(&mut self) -> f32 {
        self.values(Self::fixed_unit)
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.values(|rng| rng.fixed_bytes(len))
    }

    /// A value in [-1, 1) that is an argument, so that it does not change with the values of the
    /// inputs.
    pub fn fixed_unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Bytes that are an argument.
    pub fn fixed_bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
        bytes
    }
}

/// A buffer before the call: the bytes, and how far to move it off the alignment of an allocation.
pub struct Buffer {
    pub bytes: Vec<u8>,
    pub shift: usize,
}

/// The buffers of a case. Scalars and tensors alike live in the memory of the backend.
#[derive(Default)]
pub struct Buffers(pub Vec<Buffer>);

#[derive(Clone, Copy)]
pub struct Id(pub usize);

impl Buffers {
    pub fn add(&mut self, bytes: Vec<u8>, shift: usize) -> Id {
        self.0.push(Buffer { bytes, shift });
        Id(self.0.len() - 1)
    }

    pub fn float(&mut self, value: f32) -> Id {
        self.add(value.to_le_bytes().to_vec(), 0)
    }

    fn image(&self, id: usize) -> Vec<u8> {
        let Buffer { bytes, shift } = &self.0[id];
        let mut image = vec![0xA5; GUARD + shift];
        image.extend(bytes);
        image.extend([0xA5; GUARD]);
        image
    }

    /// Where in the image the bytes are.
    fn inner(&self, id: usize) -> Range<usize> {
        let Buffer { bytes, shift } = &self.0[id];
        GUARD + shift..GUARD + shift + bytes.len()
    }
}

impl Rng {
    pub fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 32) as usize * n) >> 32
    }

    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Floats of several characters: any bits, everyday values, zeros with a few specials.
    pub fn floats(&mut self, dtype: NVTEDType, len: usize) -> Vec<u8> {
        let width = size(dtype);
        let mut bytes = self.bytes(len * width);
        if width == 1 {
            return bytes;
        }
        // Top two bytes: sign, exponent and some of the mantissa.
        let (low, high) = if dtype == kNVTEFloat16 { (0x2800, 0x4FFF) } else { (0x3C00, 0x42FF) };
        let special: &[u16] = if dtype == kNVTEFloat16 {
            &[0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0xFFFF, 1, 0x8001, 0x7BFF, 0x3555]
        } else {
            &[0, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 1, 0x8001, 0x7F7F, 0x0042]
        };
        let (specials, everyday) =
            self.pick(&[(0, 0), (0, 100), (0, 100), (1, 100), (30, 100), (1, 0)]);
        let zeros = self.chance(10);
        self.values(|values| {
            for element in bytes.chunks_exact_mut(width) {
                let top = if values.chance(specials) {
                    element.fill(0);
                    values.pick(special)
                } else if zeros {
                    element.fill(0);
                    0
                } else if everyday == 100 {
                    (values.next() as u16 & 0x8000) | values.within(low, high) as u16
                } else {
                    continue;
                };
                element[width - 2..].copy_from_slice(&top.to_le_bytes());
            }
        });
        bytes
    }

    pub fn scale(&mut self) -> f32 {
        let sign = self.pick(&[1.0, -1.0f32]);
        sign * match self.below(6) {
            0 => 1.0,
            1 => 2f32.powi(self.within(0, 80) as i32 - 40),
            2 => self.pick(&[0.0, 1e-45, 1e-39, f32::MIN_POSITIVE, 1e38, f32::MAX]),
            _ => self.fixed_unit() * 100.0,
        }
    }

    pub fn noop(&mut self) -> Option<f32> {
        match self.below(8) {
            0 => Some(1.0),
            1 => Some(0.0),
            2 => Some(self.pick(&[2.0, -1.0, 1.0000001, f32::NAN, 0.99999994])),
            _ => None,
        }
    }

    pub fn shape(&mut self) -> (usize, usize) {
        let (rows, cols) = match self.below(10) {
            0 => (1, self.within(1, 300_000)),
            1 => (self.within(1, 300_000), 1),
            2 | 3 => (self.within(1, 40), self.within(1, 40)),
            4 => (16 * self.within(1, 40), 16 * self.within(1, 40)),
            5 => (128 * self.within(1, 10), 128 * self.within(1, 10)),
            6 => (self.within(1, 9), self.within(1, 100_000)),
            7 => (self.within(1, 100_000), self.within(1, 9)),
            8 => (self.within(1, 1000), self.within(1, 1000)),
            _ => (self.within(1, 2500), self.within(1, 2500)),
        };
        (rows, cols)
    }

    /// A whole number of elements to move a pointer by.
    pub fn shift(&mut self) -> usize {
        if self.chance(50) { 0 } else { self.within(0, 17) }
    }

    /// Floats whose areas of up to 128 x 128 are each of one character, so that there are blocks of
    /// zeros, of subnormals, of NaN.
    pub fn areas(&mut self, dtype: NVTEDType, (rows, cols): (usize, usize)) -> Vec<u8> {
        let width = size(dtype);
        let mut bytes = self.floats(dtype, rows * cols);
        let side = self.pick(&[16, 32, 128]);
        for row in (0..rows).step_by(side) {
            for col in (0..cols).step_by(side) {
                let (nan, top) = match dtype {
                    kNVTEFloat16 => (0x7E00u16, 0x03FF),
                    _ => (0x7FC0, 0x007F),
                };
                let kind = self.below(12);
                for r in row..rows.min(row + side) {
                    for c in col..cols.min(col + side) {
                        let element = &mut bytes[(r * cols + c) * width..][..width];
                        let top_bytes =
                            u16::from_le_bytes(element[width - 2..].try_into().unwrap());
                        let top_bytes = match kind {
                            0 => top_bytes & 0x8000,
                            1 => top_bytes & (0x8000 | top),
                            2 => nan,
                            _ => continue,
                        };
                        if kind == 0 {
                            element.fill(0);
                        }
                        element[width - 2..].copy_from_slice(&top_bytes.to_le_bytes());
                    }
                }
            }
        }
        bytes
    }

    pub fn block_shape(&mut self) -> (usize, usize) {
        match self.below(3) {
            // Sizes around the sides of blocks and tiles.
            0 => {
                let mut side = || {
                    let near = self.pick(&[16, 32, 64, 128, 256, 384, 512, 1024]);
                    (near + self.within(0, 2)).saturating_sub(1).max(1)
                };
                (side(), side())
            }
            1 => (32 * self.within(1, 20), 32 * self.within(1, 40)),
            _ => self.shape(),
        }
    }
}

impl Buffers {
    pub fn input(&mut self, rng: &mut Rng, dtype: NVTEDType, len: usize) -> Id {
        let bytes = rng.floats(dtype, len);
        let shift = rng.shift() * size(dtype);
        self.add(bytes, shift)
    }

    /// Poisoned, so that an element that is not written shows.
    pub fn output(&mut self, rng: &mut Rng, dtype: NVTEDType, len: usize) -> Id {
        let shift = rng.shift() * size(dtype);
        self.add(vec![0xCD; len * size(dtype)], shift)
    }

    pub fn floats(&mut self, values: impl IntoIterator<Item = f32>) -> Id {
        self.add(values.into_iter().flat_map(f32::to_le_bytes).collect(), 0)
    }

    pub fn ints(&mut self, values: impl IntoIterator<Item = usize>) -> Id {
        self.add(values.into_iter().flat_map(|v| (v as i64).to_le_bytes()).collect(), 0)
    }

    /// Values in [-top, top].
    pub fn units(&mut self, rng: &mut Rng, dtype: NVTEDType, len: usize, top: f32) -> Id {
        let values: Vec<u8> = (0..len).flat_map(|_| (top * rng.unit()).to_le_bytes()).collect();
        let shift = rng.shift() * size(dtype);
        self.add(cast(&values, kNVTEFloat32, dtype), shift)
    }
}

/// A scale matrix: its dtype, rows, and the elements that each row needs.
pub fn scale_matrix(
    mode: NVTEScalingMode,
    colwise: bool,
    shape: (usize, usize),
) -> (NVTEDType, usize, usize) {
    let [lines, needed] = scale_shape(mode as i32, colwise, shape);
    let dtype = if mode == NVTE_MXFP8_1D_SCALING { kNVTEFloat8E8M0 } else { kNVTEFloat32 };
    (dtype, lines, needed)
}

pub const BLOCK_MODES: [NVTEScalingMode; 3] =
    [NVTE_MXFP8_1D_SCALING, NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D];

/// How what the CUDA backend leaves in a buffer may differ from what the CPU backend leaves there.
#[derive(Clone, Copy, PartialEq)]
pub enum Expect {
    Bits,
    /// As `Bits`, and the values of the inputs have no influence.
    Fixed,
    /// The difference is at most this bound and one spacing of the type.
    Within(f64),
    /// The difference is at most this part of the value.
    Relative(f64),
    /// The output may be anything.
    Scratch,
}

/// A buffer that a call may write to.
#[derive(Clone, Copy)]
pub struct Output {
    pub name: &'static str,
    pub dtype: NVTEDType,
    pub id: Id,
    pub expect: Expect,
}

impl Output {
    /// An output, or none without a buffer.
    pub fn new(
        name: &'static str,
        dtype: NVTEDType,
        id: impl Into<Option<Id>>,
        expect: Expect,
    ) -> Option<Self> {
        Some(Self { name, dtype, id: id.into()?, expect })
    }

    pub fn bits(name: &'static str, dtype: NVTEDType, id: impl Into<Option<Id>>) -> Option<Self> {
        Self::new(name, dtype, id, Expect::Bits)
    }

    pub fn within(
        name: &'static str,
        dtype: NVTEDType,
        id: impl Into<Option<Id>>,
        bound: f64,
    ) -> Option<Self> {
        Self::new(name, dtype, id, Expect::Within(bound))
    }

    /// Compares what is in the buffer on the CPU and on CUDA.
    pub fn check(&self, cpu: &[Vec<u8>], cuda: &[Vec<u8>]) -> Check {
        let &Self { name, dtype, id: Id(id), expect } = self;
        let (cpu, cuda) = (&cpu[id], &cuda[id]);
        match expect {
            Expect::Bits | Expect::Fixed => equal(name, dtype, cpu, cuda),
            Expect::Within(bound) => close(name, dtype, bound, cpu, cuda),
            Expect::Relative(part) => {
                let pairs = decode(cpu, dtype).into_iter().zip(decode(cuda, dtype)).enumerate();
                // A NaN is within no bound.
                let within = |a: f32, b: f32| f64::from((a - b).abs()) <= part * f64::from(a);
                let mut far = pairs.filter(|&(_, (a, b))| !within(a, b));
                far.next().map_or(Ok(()), |(i, (a, b))| {
                    Err(format!("{name}[{i}]: cpu {a:e}, cuda {b:e}, allowed {part:e} of it"))
                })
            }
            Expect::Scratch => Ok(()),
        }
    }
}

/// A call of an operator: its buffers, those that it writes, and how it is made on a backend. Comparison runs
/// it on both backends; capture makes a graph of it.
pub struct Case {
    pub what: String,
    pub buffers: Buffers,
    pub outputs: Vec<Output>,
    pub call: Box<dyn Fn(&Side) -> Outcome>,
}

/// Name, type and buffer of an output.
type Named = (&'static str, NVTEDType, Option<Id>);

impl Case {
    pub fn new(
        what: String,
        buffers: Buffers,
        outputs: impl IntoIterator<Item = Option<Output>>,
        call: impl Fn(&Side) -> Outcome + 'static,
    ) -> Self {
        let outputs = outputs.into_iter().flatten().collect();
        Self { what, buffers, outputs, call: Box::new(call) }
    }

    /// Outputs that are equal to the bit.
    pub fn bits(
        what: String,
        buffers: Buffers,
        outputs: &[Named],
        call: impl Fn(&Side) -> Outcome + 'static,
    ) -> Self {
        let outputs = outputs.iter().map(|&(name, dtype, id)| Output::bits(name, dtype, id));
        Self::new(what, buffers, outputs, call)
    }

    /// Outputs that may differ by bounds of their own.
    pub fn within(
        what: String,
        buffers: Buffers,
        outputs: &[(&'static str, NVTEDType, Option<Id>, f64)],
        call: impl Fn(&Side) -> Outcome + 'static,
    ) -> Self {
        let output = |&(name, dtype, id, bound)| Output::within(name, dtype, id, bound);
        Self::new(what, buffers, outputs.iter().map(output), call)
    }

    /// Outputs of one type that may differ by one bound.
    pub fn near(
        what: String,
        buffers: Buffers,
        dtype: NVTEDType,
        bound: f64,
        outputs: &[Id],
        call: impl Fn(&Side) -> Outcome + 'static,
    ) -> Self {
        let output = |&id: &Id| Output::within("output", dtype, id, bound);
        Self::new(what, buffers, outputs.iter().map(output), call)
    }

    /// Buffers in which a backend may leave anything.
    pub fn scratch(mut self, ids: impl IntoIterator<Item = Id>) -> Self {
        let scratch = |id| Output::new("scratch", kNVTEByte, id, Expect::Scratch);
        self.outputs.extend(ids.into_iter().filter_map(scratch));
        self
    }
}

/// The buffers in the memory of one backend.
pub struct Side<'a> {
    pub table: &'static OpTable,
    pub buffers: &'a Buffers,
    pub stream: cudaStream_t,
    /// The buffer that is number 0 for the call that runs.
    pub first: Cell<usize>,
    memory: Vec<*mut c_void>,
}

impl<'a> Side<'a> {
    /// Allocates, and fills nothing.
    pub fn open(table: &'static OpTable, buffers: &'a Buffers) -> Result<Self, String> {
        let mut side =
            Self { table, buffers, stream: null_mut(), memory: Vec::new(), first: Cell::new(0) };
        // SAFETY: the stream is ours.
        ok(unsafe { table.stream_create.unwrap()(&mut side.stream) }, "stream_create")?;
        for id in 0..buffers.0.len() {
            side.memory.push(malloc(table, buffers.inner(id).end + GUARD)?);
        }
        Ok(side)
    }

    pub fn fill(&self) -> Check {
        let image = |(id, &ptr)| upload(self.table, ptr, &self.buffers.image(id), self.stream);
        self.memory.iter().enumerate().try_for_each(image)
    }

    pub fn at<T>(&self, Id(id): Id) -> *mut T {
        let id = self.first.get() + id;
        self.memory[id].cast::<u8>().wrapping_add(self.buffers.inner(id).start).cast()
    }

    /// The address of a buffer, or null without one.
    pub fn maybe<T>(&self, id: Option<Id>) -> *mut T {
        id.map_or(null_mut(), |id| self.at(id))
    }

    /// What is in the buffers, once the stream is idle; guards checked and cut off.
    pub fn contents(&self) -> Result<Vec<Vec<u8>>, String> {
        synchronize(self.table, self.stream)?;
        let mut contents = Vec::new();
        for (id, &ptr) in self.memory.iter().enumerate() {
            let (before, inner) = (self.buffers.image(id), self.buffers.inner(id));
            let mut after = vec![0; before.len()];
            download(self.table, &mut after, ptr, self.stream)?;
            for at in (0..inner.start).chain(inner.end..before.len()) {
                if before[at] != after[at] {
                    let at = at as isize - inner.start as isize;
                    let len = inner.len();
                    return Err(format!("buffer {id}: byte {at} of {len} was overwritten"));
                }
            }
            contents.push(after[inner].to_vec());
        }
        Ok(contents)
    }
}

impl Drop for Side<'_> {
    fn drop(&mut self) {
        self.memory.iter().for_each(|&ptr| free(self.table, ptr));
        // SAFETY: the stream is ours; none was created if it is null.
        unsafe {
            if !self.stream.is_null() {
                self.table.stream_destroy.unwrap()(self.stream);
            }
        }
    }
}

pub fn reason(outcome: Outcome) -> String {
    if outcome.reason.is_null() {
        return "no reason given".into();
    }
    // SAFETY: a backend's reason is a C string until the thread's next call.
    unsafe { CStr::from_ptr(outcome.reason) }.to_string_lossy().into_owned()
}

pub fn ok(outcome: Outcome, what: &str) -> Check {
    match outcome.status() {
        BackendStatus::NVTEX_BACKEND_OK => Ok(()),
        status => Err(format!("{what}: {status:?}: {}", reason(outcome))),
    }
}

/// Makes calls up to the first that fails.
pub fn in_turn<'a>(calls: impl IntoIterator<Item = &'a dyn Fn() -> Outcome>) -> Outcome {
    let mut outcome = Outcome::OK;
    for call in calls {
        outcome = call();
        if outcome.status() != BackendStatus::NVTEX_BACKEND_OK {
            break;
        }
    }
    outcome
}

pub fn malloc(table: &OpTable, bytes: usize) -> Result<*mut c_void, String> {
    let mut ptr = null_mut();
    // SAFETY: the pointer is ours.
    ok(unsafe { table.device_malloc.unwrap()(&mut ptr, bytes) }, "device_malloc")?;
    Ok(ptr)
}

pub fn free(table: &OpTable, ptr: *mut c_void) {
    // SAFETY: the pointer comes from `malloc`.
    unsafe { table.device_free.unwrap()(ptr) };
}

pub fn synchronize(table: &OpTable, stream: cudaStream_t) -> Check {
    // SAFETY: the stream is null or open.
    ok(unsafe { table.stream_synchronize.unwrap()(stream) }, "stream_synchronize")
}

pub fn upload(table: &OpTable, to: *mut c_void, from: &[u8], stream: cudaStream_t) -> Check {
    // SAFETY: callers pass memory of that size.
    let outcome = unsafe {
        let kind = CopyKind::NVTEX_COPY_TO_DEVICE;
        table.device_memcpy.unwrap()(to, from.as_ptr().cast(), from.len(), kind, stream)
    };
    ok(outcome, "copy to device")?;
    synchronize(table, stream)
}

pub fn download(
    table: &OpTable,
    to: &mut [u8],
    from: *const c_void,
    stream: cudaStream_t,
) -> Check {
    // SAFETY: callers pass memory of that size.
    let outcome = unsafe {
        let kind = CopyKind::NVTEX_COPY_TO_HOST;
        table.device_memcpy.unwrap()(to.as_mut_ptr().cast(), from, to.len(), kind, stream)
    };
    ok(outcome, "copy to host")?;
    synchronize(table, stream)
}

/// Equal bits; of wider types than FP8 any NaN equals any other, since hardware differs there and
/// the operators do not say.
pub fn equal(name: &str, dtype: NVTEDType, cpu: &[u8], cuda: &[u8]) -> Check {
    let width = size(dtype);
    let nan = |bytes: &[u8]| match dtype {
        kNVTEFloat32 => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        kNVTEFloat16 => u16::from_le_bytes(bytes.try_into().unwrap()) & 0x7FFF > 0x7C00,
        kNVTEBFloat16 => u16::from_le_bytes(bytes.try_into().unwrap()) & 0x7FFF > 0x7F80,
        _ => false,
    };
    if cpu == cuda {
        return Ok(());
    }
    let pairs = || cpu.chunks_exact(width).zip(cuda.chunks_exact(width)).enumerate();
    let bad: Vec<_> =
        pairs().filter(|(_, (a, b))| a != b && !(nan(a) && nan(b))).map(|(i, _)| i).collect();
    let Some(&first) = bad.first() else {
        return Ok(());
    };
    let hex = |bytes: &[u8]| {
        bytes[first * width..][..width].iter().rev().map(|b| format!("{b:02x}")).collect::<String>()
    };
    Err(format!(
        "{name}: {} of {} elements differ, first at {first}: cpu {}, cuda {}",
        bad.len(),
        cpu.len() / width,
        hex(cpu),
        hex(cuda)
    ))
}

/// Checks that only the buffers in `but` were written to.
pub fn unchanged(before: &Buffers, after: &[Vec<u8>], but: impl IntoIterator<Item = Id>) -> Check {
    let but: Vec<usize> = but.into_iter().map(|id| id.0).collect();
    for (id, (before, after)) in before.0.iter().zip(after).enumerate() {
        if !but.contains(&id) && before.bytes != *after {
            return Err(format!("buffer {id} was written to"));
        }
    }
    Ok(())
}

/// The table of the CUDA backend; without one the test is skipped.
pub fn cuda(name: &str) -> Option<&'static OpTable> {
    cuda_table().inspect_err(|why| eprintln!("{name}: skipped: no CUDA device: {why}")).ok()
}

pub fn entry<A>(
    side: &Side,
    entry: Option<unsafe extern "C-unwind" fn(*const A, cudaStream_t) -> Outcome>,
    args: A,
) -> Outcome {
    // SAFETY: the arguments describe the buffers of the case.
    unsafe { entry.expect("table entry")(&args, side.stream) }
}

/// Runs an attention by the implementation that the backend's plan chooses, and answers what that answers if it
/// chooses none.
pub fn run_attention(side: &Side, mut args: AttentionArgs) -> Outcome {
    let mut plan = AttentionPlan {
        explain: false,
        workspace_bytes: 0,
        implementation: 0,
        name: null(),
        rejected: null(),
    };
    // SAFETY: the arguments describe the buffers of the case.
    let outcome = unsafe { side.table.attention_plan.expect("table entry")(&args, &mut plan) };
    if outcome.status() != BackendStatus::NVTEX_BACKEND_OK {
        return outcome;
    }
    args.implementation = plan.implementation;
    entry(side, side.table.attention, args)
}

/// Casts on the CPU.
pub fn cast(from: &[u8], input_dtype: NVTEDType, output_dtype: NVTEDType) -> Vec<u8> {
    let numel = from.len() / size(input_dtype);
    // The memory is made of 64-bit words, for the alignment of any type.
    let mut input = vec![0u64; from.len().div_ceil(8)];
    let mut output = vec![0u64; (numel * size(output_dtype)).div_ceil(8)];
    for (word, bytes) in input.iter_mut().zip(from.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(padded);
    }
    let (input, rowwise) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
    // SAFETY: the buffers have the sizes that the arguments say.
    let outcome = unsafe {
        if is_fp8(input_dtype) {
            let one = 1f32;
            let args = DequantizeArgs {
                input,
                output: rowwise,
                scale_inv: (&raw const one).cast(),
                rows: 1,
                cols: numel,
                input_dtype,
                output_dtype,
                ..DEQUANTIZE
            };
            cpu_table().dequantize.unwrap()(&args, null_mut())
        } else {
            let args = Cast {
                input,
                rowwise,
                rows: 1,
                cols: numel,
                input_dtype,
                output_dtype,
                ..QUANTIZE
            };
            cpu_table().quantize.unwrap()(&QuantizeArgs { cast: args }, null_mut())
        }
    };
    ok(outcome, "cast").expect("cast on the CPU");
    let mut bytes: Vec<u8> = output.into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.truncate(numel * size(output_dtype));
    bytes
}

pub fn decode(bytes: &[u8], dtype: NVTEDType) -> Vec<f32> {
    cast(bytes, dtype, kNVTEFloat32)
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

/// Distance between neighbouring values, relative to them, and the smallest one.
pub fn spacing(dtype: NVTEDType) -> (f64, f64) {
    let (mant, smallest) = match dtype {
        kNVTEFloat32 => (23, -149),
        kNVTEFloat16 => (10, -24),
        kNVTEBFloat16 => (7, -133),
        kNVTEFloat8E4M3 => (3, -9),
        _ => (2, -16),
    };
    (2f64.powi(-mant), 2f64.powi(smallest))
}

/// `|cuda - cpu| <= absolute + one spacing of the type`
pub fn close(name: &str, dtype: NVTEDType, absolute: f64, cpu: &[u8], cuda: &[u8]) -> Check {
    let (relative, smallest) = spacing(dtype);
    for (i, (&a, b)) in decode(cpu, dtype).iter().zip(decode(cuda, dtype)).enumerate() {
        let bound = absolute + relative * (a.abs().max(b.abs()) as f64) + smallest;
        // A NaN fits no bound.
        let fits = (a as f64 - b as f64).abs() <= bound;
        if !fits {
            return Err(format!("{name}[{i}]: cpu {a:e}, cuda {b:e}, allowed {bound:e}"));
        }
    }
    Ok(())
}

/// How far CUDA may be from the CPU in a product over k of operands of at most 1, times `scale`:
/// before and after the epilogue.
pub fn product_bounds(
    operands: [NVTEDType; 2],
    k: usize,
    scale: f32,
    added_in: Option<NVTEDType>,
    activated: bool,
) -> (f64, f64) {
    // Products of f32 may be TF32 with 10 bits of mantissa; the sums of FP8 products keep about 13
    // bits; the rest is f32. Errors add up like a random walk.
    let unit = match operands {
        [kNVTEFloat32, kNVTEFloat32] => 2f64.powi(-10),
        [a, b] if is_fp8(a) || is_fp8(b) => 2f64.powi(-11),
        _ => 2f64.powi(-20),
    };
    let walk = scale.abs() as f64 * (k.max(1) as f64).sqrt();
    // cuBLASLt may round the product to D's type before it adds C or the bias.
    let rounding = added_in.map_or(0.0, |dtype| 1.5 * walk * spacing(dtype).0);
    let sum = 4.0 * walk * unit + rounding;
    // tanh of the hardware has 11 bits.
    (sum, if activated { sum * 1.2 + 2e-3 * (1.0 + (k as f64).sqrt()) } else { sum })
}

/// A cast per tensor that touches nothing.
pub const QUANTIZE: Cast = Cast {
    input: null(),
    rowwise: null_mut(),
    colwise: null_mut(),
    scale: null(),
    amax: null_mut(),
    rowwise_scale_inv: null_mut(),
    colwise_scale_inv: null_mut(),
    noop: null(),
    rows: 0,
    cols: 0,
    rowwise_scale_stride: 0,
    colwise_scale_stride: 0,
    epsilon: 0.0,
    mode: NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING,
    input_dtype: kNVTEFloat32,
    output_dtype: kNVTEFloat32,
    pow2: false,
    square_blocks: false,
    swizzled: false,
    fusion: Fusion::NONE,
    group: Group::NONE,
};

/// A cast back per tensor that touches nothing.
pub const DEQUANTIZE: DequantizeArgs = DequantizeArgs {
    input: null(),
    output: null_mut(),
    scale_inv: null(),
    rows: 0,
    cols: 0,
    scale_stride: 0,
    mode: NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING,
    input_dtype: kNVTEFloat8E4M3,
    output_dtype: kNVTEFloat32,
    colwise: false,
    swizzled: false,
    group: Group::NONE,
};

/// A part of a rotary embedding without heads.
pub const NO_ROPE_PART: RopePart = {
    let none = RopeStrides { position: 0, sequence: 0, group: 0, head: 0, element: 1 };
    RopePart {
        input: null(),
        output: null_mut(),
        freqs: null(),
        heads: 0,
        heads_per_group: 1,
        input_strides: none,
        output_strides: none,
    }
};

/// A tensor of an attention that is absent.
pub const NO_ATTENTION_TENSOR: AttentionTensor = AttentionTensor {
    data: null_mut(),
    dtype: kNVTEFloat32,
    batch: 0,
    row: 0,
    head: 0,
    scale: null(),
    scale_inv: null(),
    amax: null_mut(),
};

/// An attention without tensors.
pub const ATTENTION: AttentionArgs = {
    let none = NO_ATTENTION_TENSOR;
    let side =
        AttentionSide { cu_seqlens: null(), starts: null(), max_seqlen: 0, tokens: 0, heads: 1 };
    AttentionArgs {
        q: none,
        k: none,
        v: none,
        o: none,
        d_o: none,
        dq: none,
        dk: none,
        dv: none,
        bias: none,
        dbias: none,
        s: none,
        dp: none,
        q_side: side,
        kv_side: side,
        batch: 1,
        dim_qk: 0,
        dim_v: 0,
        stats: null_mut(),
        max: null_mut(),
        sink: null(),
        dsink: null_mut(),
        page_table_k: null(),
        page_table_v: null(),
        max_pages_k: 0,
        max_pages_v: 0,
        page_size_k: 0,
        page_size_v: 0,
        num_pages_k: 0,
        num_pages_v: 0,
        scale: 1.0,
        dropout: 0.0,
        rng_state: null(),
        window_left: -1,
        window_right: -1,
        bottom_right: false,
        alibi: false,
        backward: false,
        deterministic: false,
        implementation: 0,
        workspace: null_mut(),
        workspace_bytes: 0,
        heads_before: 0,
        other_heads: 0,
        sums: null_mut(),
        grads_amax: null_mut(),
    }
};

/// More than any buffer of these tests holds: their groups are right, and what wrong ones do is tested through
/// the C API (group_bounds.c).
pub const ROOM: usize = 1 << 40;

/// A group with room for everything. Kernels take dimensions of 32 bits.
pub const LARGE_GROUP: Group =
    Group { most_dim: 1 << 31, elements: ROOM, row_scales: ROOM, col_scales: ROOM, ..Group::NONE };

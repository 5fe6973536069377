//! Optimizers over the parameters of modules. All that changes from step to step lies on the device
//! (`StepNumbers`), so that a step that is captured with the passes can be replayed.

use super::data_parallel::{DataParallel, slice};
use super::host::fill;
use crate::backend::args::{AdamMaster, RateRule, StepNumbers, StepNumbersArgs};
use crate::error::{Error, Result};
use crate::nn::capi::Module;
use crate::nn::memory::{Block, Layout, Lifetime, Place, host_list, host_room, push};
use crate::nn::ops::{self, plain};
use crate::nn::{Context, Division, Parameter, Run};
use crate::op::multi_tensor::step::{self, AdamConstants, NormScratch, SgdConstants};
use crate::op::{newton_schulz, ranks};
use crate::parallel::Communicator;
use crate::parallel::exports::NVTEXGridGroup::{self, NVTEX_GRID_EP, NVTEX_GRID_TP};
use crate::tensor::{Buffer, Tensor, bytes};
use crate::types::NVTEDType::{self, *};
use crate::types::cudaStream_t;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a parameter is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    AdamW,
    Sgd,
    Muon,
    /// Not at all.
    None,
}

/// In what the parameters of 16 bits are kept beside their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masters {
    Float,
    Remainder,
    None,
}

/// What holds for one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    pub update: Update,
    pub weight_decay: f32,
    /// What the learning rate is multiplied by.
    pub rate_factor: f32,
}

#[derive(Clone, Copy, Debug)]
pub struct AdamSettings {
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    pub moment_dtype: NVTEDType,
}

#[derive(Clone, Copy, Debug)]
pub struct LossScaling {
    pub first: f32,
    pub growth: f32,
    pub backoff: f32,
    /// 0: the scale stays.
    pub interval: i32,
    pub least: f32,
    pub most: f32,
}

#[derive(Clone, Copy, Debug)]
pub struct Clipping {
    /// 0: gradients are not clipped.
    pub max_norm: f32,
    /// The norm is computed also where nothing else needs it.
    pub check: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub options: Options,
    pub rate: f32,
    pub schedule: RateRule,
    pub warmup_steps: i32,
    pub total_steps: i32,
    pub last: f32,
    pub adam: AdamSettings,
    pub momentum: f32,
    pub nesterov: bool,
    pub iterations: usize,
    pub masters: Masters,
    /// Masters begin with the initial values of the modules before these were rounded.
    pub initial_masters: bool,
    pub clipping: Clipping,
    pub loss: LossScaling,
    /// Micro-batches whose gradients are averaged.
    pub accumulation: i32,
    /// Backward passes add to the gradients that the optimizer has made.
    pub accumulate: bool,
    /// Gradients that the optimizer makes have the dtype of their parameter, not float32.
    pub low_precision_gradients: bool,
}

/// The choice of options for a parameter, by its name and shape.
pub type Choose<'a> = dyn Fn(&str, &[usize], &mut Options) -> Result<()> + 'a;

/// The numbers of the newest step.
pub type Numbers = StepNumbers;

/// Coefficients of the quintic iteration that Muon takes (Jordan et al., Muon, 2024).
const QUINTIC: [f32; 3] = [3.4445, -4.775, 2.0315];
/// The root mean square of an update of AdamW, which Muon's updates get (Liu et al., Muon is Scalable for LLM
/// Training, 2025).
const MUON_RMS: f32 = 0.2;
const MUON_EPSILON: f32 = 1e-7;
/// What arrays of the state are aligned to.
const ALIGNMENT: usize = 256;
const GRADIENT_DTYPES: [NVTEDType; 3] = [kNVTEFloat32, kNVTEBFloat16, kNVTEFloat16];

/// Where the numbers of an optimizer lie in their block.
struct NumberPlaces {
    numbers: Place,
    factors: Place,
    rates: Place,
    norms: Place,
    partials: Place,
    muon_norms: Place,
    muon_partials: Place,
    /// A number for a flag that nobody reads.
    unused: Place,
}

/// A parameter that the optimizer updates.
pub struct Entry {
    /// Name of the module, a point, and the name of the parameter in it.
    pub name: String,
    /// The places of the parameter, by module and index: several if modules share it.
    uses: Vec<(usize, usize)>,
    pub dims: Vec<usize>,
    pub options: Options,
    /// The index of its learning rate.
    rate: usize,
    /// The parameter has no value in high precision.
    quantized: bool,
    /// What this rank updates, and keeps masters and state of, if other ranks update the rest.
    pub division: Option<Division>,
    /// The groups of ranks that have the other parts of the parameter.
    pub over: Vec<NVTEXGridGroup>,
    /// F32, or the remainder of I16.
    pub master: Option<Buffer>,
    /// Both moments of AdamW; the momentum of the others, if there is one.
    pub state: [Option<Buffer>; 2],
    /// The scales of moments in E4M3, one for each block.
    pub scales: [Option<Buffer>; 2],
    /// The gradient that the optimizer has made.
    own_gradient: Option<Buffer>,
}

impl Entry {
    pub fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// The names of the arrays in `state`.
    pub fn state_names(&self) -> [&'static str; 2] {
        match self.options.update {
            Update::AdamW => ["exp_avg", "exp_avg_sq"],
            _ => ["momentum", ""],
        }
    }

    /// Which of the moments these codes are, and their scales.
    fn scales_of(&self, codes: &Buffer) -> Option<(usize, Buffer)> {
        let of = |moment: usize| self.state[moment].filter(|state| state.ptr() == codes.ptr());
        let moment = (0..2).find(|&moment| of(moment).is_some())?;
        Some((moment, self.scales[moment]?))
    }

    /// An array of the state in high precision, with the memory that it has if it is not the array itself.
    pub fn in_high_precision(&self, run: &Run, state: &Buffer) -> Result<(Buffer, Option<Block>)> {
        let Some((moment, scales)) = self.scales_of(state) else { return Ok((*state, None)) };
        let codes = super::host::bytes(state, run.stream)?;
        let scales = super::host::widened(&super::host::bytes(&scales, run.stream)?, kNVTEFloat32)?;
        let values = step::decode_moments(&codes, &scales, moment == 1)?;
        let block = run.block(size_of_val(&values[..]), Lifetime::Scratch)?;
        let wide = block.buffer(0, kNVTEFloat32, state.shape.dims());
        ops::upload(wide.ptr(), &values, run.stream)?;
        Ok((wide, Some(block)))
    }

    /// Sets moments of E4M3. Returns whether the array is one.
    pub fn set_moment(&self, state: &Buffer, values: &[f32], stream: cudaStream_t) -> Result<bool> {
        let Some((moment, scales)) = self.scales_of(state) else { return Ok(false) };
        let (codes, new_scales) = step::encode_moments(values, moment == 1)?;
        ops::upload(state.ptr(), &codes, stream)?;
        ops::upload(scales.ptr(), &new_scales, stream)?;
        Ok(true)
    }

    pub fn remainder(&self) -> bool {
        self.master.is_some_and(|master| master.dtype == kNVTEInt16)
    }

    /// The elements that this rank updates.
    pub fn part(&self) -> Range<usize> {
        let count = self.numel();
        self.division.map_or(0..count, |division| division.own(count))
    }

    /// These elements of an array of all.
    fn own(&self, whole: &Buffer) -> Buffer {
        if self.division.is_some() { slice(whole, self.part()) } else { *whole }
    }
}

/// A parameter in a step: its value and its gradient.
struct Live<'a> {
    entry: &'a Entry,
    value: Buffer,
    gradient: Buffer,
    /// Scale, amax and inverse of the scale of a weight in FP8 alone, if the operator that updates the master casts it.
    cast: Option<[Buffer; 3]>,
}

pub struct Optimizer {
    context: Arc<Context>,
    modules: Vec<Arc<Module>>,
    settings: Settings,
    pub entries: Vec<Entry>,
    places: NumberPlaces,
    numbers: Block,
    num_rates: usize,
    needs_norm: bool,
    norm_ranks: NormRanks,
    newton_schulz: ranks::Context,
    own_gradients: Option<Block>,
    data_parallel: Option<Arc<DataParallel>>,
    /// Reductions of gradients before the newest step.
    reductions: AtomicU64,
    _state: Block,
}

/// The lists of one call of an operator, and what its tensors have in common.
struct Call<K> {
    key: K,
    lists: Vec<Vec<Buffer>>,
}

/// Puts a tensor into the call that has its key.
fn put<K: PartialEq>(calls: &mut Vec<Call<K>>, key: K, buffers: &[Buffer]) -> Result<()> {
    let at = calls.iter().position(|call| call.key == key).unwrap_or_else(|| {
        calls.push(Call { key, lists: vec![Vec::new(); buffers.len()] });
        calls.len() - 1
    });
    calls[at].lists.iter_mut().zip(buffers).try_for_each(|(list, &buffer)| push(list, buffer))
}

/// Names the parameter in the errors of what concerns it alone.
fn of_parameter<T>(name: &str, result: Result<T>) -> Result<T> {
    result.map_err(|e| Error { message: format!("parameter {name:?}: {}", e.message), ..e })
}

impl Optimizer {
    pub fn new(
        context: &Arc<Context>,
        modules: Vec<Arc<Module>>,
        (settings, choose): (Settings, &Choose),
        data_parallel: Option<Arc<DataParallel>>,
        stream: cudaStream_t,
    ) -> Result<Self> {
        let run = Run::outside(context, stream);
        let mut entries: Vec<Entry> = Vec::new();
        let (mut values, mut identities) = (Vec::<Buffer>::new(), Vec::new());
        let mut given = Vec::new();
        let mut factors: Vec<f32> = Vec::new();
        for (m, module) in modules.iter().enumerate() {
            let found = module.with_parameters(|parameters| -> Vec<_> {
                let of = |(name, p): (String, &mut Parameter)| {
                    let value = p.home();
                    let mut over = vec![NVTEX_GRID_TP, NVTEX_GRID_EP];
                    over.retain(|&group| p.shard.is_over(group));
                    let of_ranks = (p.division, over, p.identity());
                    (name, p.dims.clone(), value, p.format.is_some(), p.grad.is_some(), of_ranks)
                };
                parameters.into_iter().map(of).collect()
            });
            for (index, (name, dims, value, quantized, has_gradient, of_ranks)) in
                found.into_iter().enumerate()
            {
                let (division, over, identity) = of_ranks;
                let name = format!("{}.{name}", module.name());
                check_ranks(&name, data_parallel.as_deref(), (module, index), division)?;
                let shared = identities.iter().position(|&known| known == identity);
                if let Some(shared) = shared.filter(|_| identity != 0) {
                    entries[shared].uses.push((m, index));
                    given[shared] |= has_gradient;
                    continue;
                }
                let options = settings.options(&name, &dims, choose);
                let options = of_parameter(
                    &name,
                    options.and_then(|o| o.of_part(division.is_some() || !over.is_empty())),
                )?;
                let known = factors.iter().position(|&factor| factor == options.rate_factor);
                let rate = known.unwrap_or_else(|| {
                    factors.push(options.rate_factor);
                    factors.len() - 1
                });
                values.push(value);
                identities.push(identity);
                given.push(has_gradient);
                entries.push(Entry {
                    name,
                    uses: vec![(m, index)],
                    dims,
                    options,
                    rate,
                    quantized,
                    division,
                    over,
                    master: None,
                    state: [None; 2],
                    scales: [None; 2],
                    own_gradient: None,
                });
            }
        }
        if entries.iter().all(|entry| entry.options.update == Update::None) {
            let name = "modules";
            return Err(Error::argument(name, "a parameter that is updated", "none of them"));
        }
        let clipping = &settings.clipping;
        let needs_norm = clipping.check || clipping.max_norm > 0.0 || settings.loss.interval > 0;
        let (mut layout, mut gradients) = (Layout::default(), Layout::default());
        let mut planned = Vec::new();
        for (entry, (value, given)) in entries.iter().zip(values.iter().zip(&given)) {
            planned.push(settings.plan(entry, value.dtype, &mut layout, &mut gradients, *given));
        }
        let state = run.block(layout.bytes(), Lifetime::Persistent)?;
        if layout.bytes() > 0 {
            ops::zero(&state.buffer(0, kNVTEByte, &[layout.bytes()]), stream)?;
        }
        let own_gradients = match gradients.bytes() {
            0 => None,
            bytes => {
                let block = run.block(bytes, Lifetime::Persistent)?;
                ops::zero(&block.buffer(0, kNVTEByte, &[bytes]), stream)?;
                Some(block)
            }
        };
        for (entry, planned) in entries.iter_mut().zip(&planned) {
            let row = [entry.part().len()];
            let dims = if entry.division.is_some() { &row[..] } else { &entry.dims };
            let array = |place: Place| state.array(place, dims);
            entry.master = planned.master.map(array);
            entry.state = planned.state.map(|place| place.map(array));
            let blocks = [step::moment_blocks(entry.part().len())];
            entry.scales = planned.scales.map(|place| Some(state.array(place?, &blocks)));
            if let (Some(place), Some(block)) = (planned.gradient, &own_gradients) {
                entry.own_gradient = Some(block.array(place, &entry.dims));
            }
        }
        let norm_ranks = NormRanks::of(context, &entries, data_parallel.as_deref());
        let (numbers, places) = settings.numbers(&run, &entries, &factors, norm_ranks.count())?;
        let made = Self {
            context: Arc::clone(context),
            modules,
            settings,
            entries,
            places,
            numbers,
            num_rates: factors.len(),
            needs_norm,
            norm_ranks,
            newton_schulz: ranks::Context::default(),
            own_gradients,
            data_parallel,
            reductions: AtomicU64::new(0),
            _state: state,
        };
        made.begin(&run)?;
        Ok(made)
    }

    /// First masters, and gradients of the optimizer's own.
    fn begin(&self, run: &Run) -> Result<()> {
        for entry in self.entries.iter().filter(|entry| !entry.part().is_empty()) {
            let filled = match entry.master {
                Some(master) if master.dtype == kNVTEFloat32 => {
                    self.with(entry, |p| first_master(run, p, (entry, &master), &self.settings))
                }
                Some(_) if self.settings.initial_masters => {
                    let initial = self.with(entry, |p| p.initial())?;
                    self.set_master(entry, (&initial, true), run.stream)
                }
                _ => Ok(()),
            };
            of_parameter(&entry.name, filled)?;
        }
        for entry in &self.entries {
            let Some(gradient) = entry.own_gradient else { continue };
            let accumulate = self.settings.accumulate || entry.uses.len() > 1;
            for &(module, index) in &entry.uses {
                self.modules[module].with_parameters(|mut parameters| {
                    let (_, parameter) = &mut parameters[index];
                    parameter.bind_grad("gradient", Some(&plain(gradient)), accumulate)
                })?;
            }
        }
        Ok(())
    }

    /// Applies `body` to the module's record of a parameter.
    fn with<R>(&self, entry: &Entry, body: impl FnOnce(&mut Parameter) -> R) -> R {
        let (module, index) = entry.uses[0];
        self.modules[module].with_parameters(|mut parameters| body(parameters[index].1))
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn data_parallel(&self) -> Option<&Arc<DataParallel>> {
        self.data_parallel.as_ref()
    }

    fn array(&self, place: Place, count: usize) -> Buffer {
        self.numbers.array(place, &[count])
    }

    fn device_numbers(&self) -> step::Numbers {
        step::Numbers(self.numbers_buffer().ptr())
    }

    /// The numbers on the device, as bytes.
    pub fn numbers_buffer(&self) -> Buffer {
        self.array(self.places.numbers, size_of::<StepNumbers>())
    }

    /// The loss scale on the device, of Float32 `[1]`.
    pub fn loss_scale(&self) -> Tensor {
        let at = std::mem::offset_of!(StepNumbers, loss_scale);
        let ptr = self.numbers_buffer().ptr().wrapping_byte_add(at);
        plain(Buffer::new(ptr, kNVTEFloat32, &[1]))
    }

    pub fn set_rate(&self, rate: f32, stream: cudaStream_t) -> Result<()> {
        let at = std::mem::offset_of!(StepNumbers, base_rate);
        ops::upload(self.numbers_buffer().ptr().wrapping_byte_add(at), &[rate], stream)
    }

    pub fn read_numbers(&self, stream: cudaStream_t) -> Result<Numbers> {
        let mut numbers = [Settings::first_numbers(&self.settings)];
        ops::download(&mut numbers, self.numbers_buffer().ptr(), stream)?;
        Ok(numbers[0])
    }

    pub fn write_numbers(&self, numbers: Numbers, stream: cudaStream_t) -> Result<()> {
        ops::upload(self.numbers_buffer().ptr(), &[numbers], stream)
    }

    pub fn zero_grad(&self, stream: cudaStream_t) -> Result<()> {
        if let Some(data_parallel) = &self.data_parallel {
            return data_parallel.zero(stream);
        }
        if let Some(block) = &self.own_gradients {
            ops::zero(&block.buffer(0, kNVTEByte, &[block.bytes()]), stream)?;
        }
        for entry in &self.entries {
            if entry.own_gradient.is_none() && entry.options.update != Update::None {
                ops::zero(&self.gradient(entry)?.1, stream)?;
            }
        }
        Ok(())
    }

    /// What this rank updates of value and gradient of a parameter, as they are bound now.
    fn gradient(&self, entry: &Entry) -> Result<(Buffer, Buffer)> {
        let found = self.with(entry, |p| {
            let gradient = p.grad.as_ref().map(|gradient| gradient.tensor.rowwise);
            (p.own, p.value.tensor.rowwise, gradient)
        });
        match found {
            (Some([value, gradient]), ..) => Ok((value, gradient)),
            (_, value, Some(gradient)) => Ok((entry.own(&value), entry.own(&gradient))),
            (_, _, None) => {
                let name = format!("gradient of {:?}", entry.name);
                let expected = "a tensor (nvtex_module_set_gradient)";
                Err(Error::argument(name, expected, "none: it was unbound"))
            }
        }
    }

    fn live(&self) -> Result<Vec<Live<'_>>> {
        let mut live = host_room(self.entries.len())?;
        for entry in self.entries.iter().filter(|entry| entry.options.update != Update::None) {
            let (value, gradient) = self.gradient(entry)?;
            if entry.division.is_some() && entry.part().is_empty() {
                continue;
            }
            live.push(Live { entry, value, gradient, cast: self.cast_on_the_way(entry) });
        }
        Ok(live)
    }

    /// A delayed scale is known before the update, whose operator then need not be followed by a cast, which would read
    /// the master again.
    fn cast_on_the_way(&self, entry: &Entry) -> Option<[Buffer; 3]> {
        let adam = entry.options.update == Update::AdamW;
        if !entry.quantized || !adam || self.settings.adam.moment_dtype != kNVTEFloat32 {
            return None;
        }
        self.with(entry, |p| {
            let value = &p.value.tensor;
            let delayed = p.format.as_ref().is_some_and(|format| format.quantizer.is_delayed());
            let alone = delayed && p.division.is_none() && !value.colwise.is_set();
            alone.then_some([value.scale, value.amax, value.rowwise_scale_inv])
        })
    }

    pub fn step(&self, stream: cudaStream_t) -> Result<()> {
        let run = Run::outside(&self.context, stream);
        let reductions = self.data_parallel.as_ref().map(|of| of.reductions());
        if reductions.is_some_and(|count| count == self.reductions.load(Ordering::Relaxed)) {
            let expected =
                "gradients that nvtex_data_parallel_reduce has summed since the step before";
            return Err(Error::argument("optimizer", expected, "those of this rank alone"));
        }
        let live = self.live()?;
        let of = |update| live.iter().filter(move |live| live.entry.options.update == update);
        self.next_numbers(&live, stream)?;
        self.adam(of(Update::AdamW), stream)?;
        self.sgd(of(Update::Sgd), stream)?;
        self.muon(&run, host_list(of(Update::Muon))?, stream)?;
        let waits = |live: &&Live| {
            live.entry.quantized && live.entry.division.is_none() && live.cast.is_none()
        };
        for Live { entry, .. } in live.iter().filter(waits) {
            if let Some(master) = entry.master {
                let cast = self.with(entry, |p| p.assign(&run, &plain(master), false));
                of_parameter(&entry.name, cast)?;
            }
        }
        if let Some(data_parallel) = &self.data_parallel {
            self.cast_parts(&run, data_parallel)?;
            data_parallel.gather_updated(stream)?;
        }
        self.reductions.store(reductions.unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }

    /// Casts what this rank has updated of weights in FP8 alone. All ranks take part, since a weight has one scale.
    fn cast_parts(&self, run: &Run, data_parallel: &DataParallel) -> Result<()> {
        let divided = |entry: &&Entry| entry.quantized && entry.division.is_some();
        for entry in self.entries.iter().filter(divided) {
            let Some(master) = entry.master else { continue };
            let (to, _) = self.gradient(entry)?;
            let ranks = data_parallel.ranks(entry.over.contains(&NVTEX_GRID_EP));
            let cast = self.with(entry, |p| p.cast_part(run, (&master, &to), ranks));
            of_parameter(&entry.name, cast)?;
        }
        Ok(())
    }

    fn next_numbers(&self, live: &[Live], stream: cudaStream_t) -> Result<()> {
        let (settings, places) = (&self.settings, &self.places);
        // One norm for each dtype and rank. Those that do not occur stay 0.
        let ranks = &self.norm_ranks;
        let norms = self.array(places.norms, GRADIENT_DTYPES.len() * ranks.count());
        let num_norms = if self.needs_norm { norms.shape.numel() } else { 0 };
        if self.needs_norm {
            let scratch = NormScratch {
                partials: self.array(places.partials, step::NORM_PARTIALS).ptr().cast(),
                of_tensors: std::ptr::null_mut(),
                chunks: 0,
            };
            for (place, dtype) in GRADIENT_DTYPES.into_iter().enumerate() {
                let of_dtype = live.iter().filter(|live| live.gradient.dtype == dtype);
                let of_dtype = of_dtype.filter(|live| ranks.counts(live.entry));
                let list = host_list(of_dtype.map(|live| live.gradient))?;
                if list.is_empty() {
                    continue;
                }
                let place = ranks.place() * GRADIENT_DTYPES.len() + place;
                let norm = norms.ptr().cast::<f32>().wrapping_add(place);
                let non_finite = self.device_numbers().non_finite();
                step::norm(list, &scratch, (norm, std::ptr::null_mut(), non_finite), stream)?;
            }
            ranks.gather(&norms, stream)?;
        }
        let args = StepNumbersArgs {
            numbers: self.numbers_buffer().ptr().cast(),
            norms: norms.ptr().cast(),
            num_norms,
            factors: self.array(places.factors, self.num_rates).ptr().cast(),
            rates: self.array(places.rates, self.num_rates).ptr().cast(),
            num_rates: self.num_rates,
            factor: 1.0 / settings.accumulation as f32,
            max_norm: settings.clipping.max_norm,
            schedule: settings.schedule,
            warmup_steps: settings.warmup_steps,
            total_steps: settings.total_steps,
            last: settings.last,
            growth: settings.loss.growth,
            backoff: settings.loss.backoff,
            growth_interval: settings.loss.interval,
            least_scale: settings.loss.least,
            most_scale: settings.loss.most,
        };
        step::step_numbers(&args, stream)
    }

    fn rate(&self, index: usize) -> *const f32 {
        let rates = self.array(self.places.rates, self.num_rates).ptr();
        rates.cast::<f32>().cast_const().wrapping_add(index)
    }

    fn adam<'a>(
        &self,
        live: impl Iterator<Item = &'a Live<'a>>,
        stream: cudaStream_t,
    ) -> Result<()> {
        use AdamMaster::*;
        let mut calls = Vec::new();
        for Live { entry, value, gradient, cast } in live {
            let [Some(m), Some(v)] = entry.state else { continue };
            let (value, master) = match entry.master {
                // Such a weight in FP8 is cast afterwards.
                Some(master) if entry.quantized && cast.is_none() => (master, None),
                master => (*value, master),
            };
            let kind = match master {
                Some(_) if entry.remainder() => NVTEX_ADAM_REMAINDER,
                Some(_) => NVTEX_ADAM_FLOAT_MASTER,
                None => NVTEX_ADAM_NO_MASTER,
            };
            let decay = entry.options.weight_decay;
            let key = (gradient.dtype, value.dtype, kind, decay, entry.rate);
            let mut buffers = vec![*gradient, value, m, v];
            if let [Some(of_m), Some(of_v)] = entry.scales {
                buffers.extend([master.unwrap_or(Buffer::UNSET), of_m, of_v]);
            } else {
                buffers.extend(master);
                buffers.extend(cast.iter().flatten());
            }
            put(&mut calls, key, &buffers)?;
        }
        let AdamSettings { beta1, beta2, epsilon, .. } = self.settings.adam;
        for Call { key: (_, _, master, weight_decay, rate), lists } in calls {
            let constants = AdamConstants { beta1, beta2, epsilon, weight_decay };
            let numbers = (self.device_numbers(), self.rate(rate));
            step::adam(lists, constants, master, numbers, stream)?;
        }
        Ok(())
    }

    /// The weight that gradient descent changes, and its copy in the module.
    fn weight(entry: &Entry, value: Buffer) -> (Buffer, Option<Buffer>) {
        match entry.master {
            Some(master) if entry.quantized => (master, None),
            Some(master) => (master, Some(value)),
            None => (value, None),
        }
    }

    fn sgd<'a>(
        &self,
        live: impl Iterator<Item = &'a Live<'a>>,
        stream: cudaStream_t,
    ) -> Result<()> {
        let mut calls = Vec::new();
        for Live { entry, value, gradient, .. } in live {
            let (weight, copy) = Self::weight(entry, *value);
            let decay = entry.options.weight_decay;
            let copy_dtype = copy.map(|copy| copy.dtype);
            let key = (gradient.dtype, weight.dtype, copy_dtype, decay, entry.rate);
            // Without momentum the operator does not touch the third list.
            let mut buffers = vec![*gradient, weight, entry.state[0].unwrap_or(weight)];
            buffers.extend(copy);
            put(&mut calls, key, &buffers)?;
        }
        for Call { key: (_, _, _, weight_decay, rate), lists } in calls {
            let constants = SgdConstants {
                scale: 1.0,
                scaled: true,
                momentum: self.settings.momentum,
                nesterov: self.settings.nesterov,
                weight_decay,
                decoupled: false,
            };
            step::sgd(lists, constants, (self.device_numbers(), self.rate(rate)), stream)?;
        }
        Ok(())
    }

    fn muon(&self, run: &Run, live: Vec<&Live>, stream: cudaStream_t) -> Result<()> {
        if live.is_empty() {
            return Ok(());
        }
        let (settings, places) = (&self.settings, &self.places);
        let mut layout = Layout::default();
        let place = |live: &&Live| layout.array(kNVTEBFloat16, live.entry.numel(), ALIGNMENT);
        let updates = host_list(live.iter().map(place))?;
        let scratch = run.scratch(layout.bytes())?;
        let array = |(live, place): (&&Live, _)| scratch.array(place, &live.entry.dims);
        let updates = host_list(live.iter().zip(updates).map(array))?;
        let numbers = self.device_numbers();
        let mut calls = Vec::new();
        for (live, &update) in live.iter().zip(&updates) {
            let Some(momentum) = live.entry.state[0] else { continue };
            put(&mut calls, live.gradient.dtype, &[live.gradient, momentum, update])?;
        }
        for call in calls {
            let momentum = (settings.momentum, settings.nesterov);
            step::muon_momentum(call.lists, momentum, numbers, stream)?;
        }
        let chunks = most_chunks(live.iter().map(|live| live.entry));
        let norms = NormScratch {
            partials: self.array(places.partials, step::NORM_PARTIALS).ptr().cast(),
            of_tensors: self.array(places.muon_partials, chunks * live.len()).ptr().cast(),
            chunks,
        };
        let unused = self.array(places.unused, 2).ptr();
        let of_tensors: *mut f32 = self.array(places.muon_norms, live.len()).ptr().cast();
        let outputs = (unused.cast(), of_tensors, unused.wrapping_byte_add(4).cast());
        step::norm(host_list(updates.iter().copied())?, &norms, outputs, stream)?;
        step::muon_normalize(
            host_list(updates.iter().copied())?,
            (of_tensors, MUON_EPSILON),
            stream,
        )?;
        let coefficients = vec![QUINTIC; settings.iterations];
        let mut calls = Vec::new();
        for (Live { entry, value, .. }, update) in live.iter().zip(updates) {
            let iterated =
                newton_schulz::iterate(&self.newton_schulz, &plain(update), &coefficients, stream);
            of_parameter(&entry.name, iterated)?;
            let (weight, copy) = Self::weight(entry, *value);
            let scale = MUON_RMS * (entry.dims[0].max(entry.dims[1]) as f32).sqrt();
            let (decay, copy_dtype) = (entry.options.weight_decay, copy.map(|copy| copy.dtype));
            let mut buffers = vec![update, weight, weight];
            buffers.extend(copy);
            put(&mut calls, (weight.dtype, copy_dtype, scale, decay, entry.rate), &buffers)?;
        }
        for Call { key: (_, _, scale, weight_decay, rate), lists } in calls {
            let constants = SgdConstants {
                scale,
                scaled: false,
                momentum: 0.0,
                nesterov: false,
                weight_decay,
                decoupled: true,
            };
            step::sgd(lists, constants, (numbers, self.rate(rate)), stream)?;
        }
        Ok(())
    }

    /// The parameter in float32 from all of its master, on the host.
    /// `value` is that of 16 bits, where the master is the rest of it.
    pub fn master_values(entry: &Entry, master: &[u8], value: &[u8]) -> Result<Vec<f32>> {
        if !entry.remainder() {
            return super::host::widened(master, kNVTEFloat32);
        }
        let join = |(&high, &low): (&[u8; 2], &[u8; 2])| {
            let (high, low) = (u16::from_le_bytes(high), u16::from_le_bytes(low));
            let high = high.wrapping_sub(low >> 15);
            f32::from_bits(u32::from(high) << 16 | u32::from(low))
        };
        host_list(value.as_chunks::<2>().0.iter().zip(master.as_chunks::<2>().0).map(join))
    }

    /// Sets a parameter and its master, in all modules that have it. `first`: a delayed scale becomes that of the values.
    pub fn set_master(
        &self,
        entry: &Entry,
        (values, first): (&[f32], bool),
        stream: cudaStream_t,
    ) -> Result<()> {
        let run = Run::outside(&self.context, stream);
        let (home, is_part) = self.with(entry, |p| (p.home(), p.own.is_some()));
        let part = if is_part { entry.part() } else { 0..entry.numel() };
        if entry.remainder() {
            let split = |x: &f32| {
                let bits = if x.is_nan() { 0x7FC0_0000 } else { x.to_bits() };
                (((bits >> 16) as u16).wrapping_add(bits as u16 >> 15), bits as u16)
            };
            let (high, low): (Vec<u16>, Vec<u16>) = values.iter().map(split).unzip();
            ops::upload(home.ptr(), &high[part], stream)?;
            return match entry.master {
                Some(master) => ops::upload(master.ptr(), &low[entry.part()], stream),
                None => Ok(()),
            };
        }
        if let Some(master) = entry.master {
            ops::upload(master.ptr(), &values[entry.part()], stream)?;
            if entry.division.is_none() {
                return self.with(entry, |p| p.assign(&run, &plain(master), first));
            }
        }
        if is_part && entry.quantized {
            return self.with(entry, |p| assign_part(&run, p, (values, first), (part, &home)));
        }
        if is_part {
            return if part.is_empty() { Ok(()) } else { fill(&run, &values[part], &home) };
        }
        self.with(entry, |p| super::host::assign(&run, p, (values, first)))
    }

    /// The entry of a parameter of a module, by its place.
    pub fn find(&self, module: &Arc<Module>, index: usize) -> Option<&Entry> {
        let module = self.modules.iter().position(|known| Arc::ptr_eq(known, module))?;
        self.entries.iter().find(|entry| entry.uses.contains(&(module, index)))
    }

    /// The gradient of a parameter, if it is bound.
    pub fn gradient_of(&self, entry: &Entry) -> Option<Buffer> {
        self.with(entry, |p| match p.own {
            Some([_, gradient]) => Some(gradient),
            None => p.grad.as_ref().map(|gradient| gradient.tensor.rowwise),
        })
    }
}

impl Drop for Optimizer {
    /// Modules must not write to gradients that are gone.
    fn drop(&mut self) {
        for entry in &self.entries {
            let Some(gradient) = entry.own_gradient else { continue };
            for &(module, index) in &entry.uses {
                self.modules[module].with_parameters(|mut parameters| {
                    let (_, parameter) = &mut parameters[index];
                    let own =
                        |bound: &crate::nn::Gradient| bound.tensor.rowwise.ptr() == gradient.ptr();
                    if parameter.grad.as_ref().is_some_and(own) {
                        parameter.grad = None;
                    }
                });
            }
        }
    }
}

/// Chunks of the largest of some parameters.
fn most_chunks<'a>(entries: impl Iterator<Item = &'a Entry>) -> usize {
    entries.map(|entry| entry.numel().div_ceil(step::NORM_CHUNK)).max().unwrap_or(0)
}

/// The ranks that have norms of gradients of their own, of which every element counts on one rank.
#[derive(Default)]
struct NormRanks {
    /// Those that have parts of a parameter by tensor parallelism.
    split: Option<Arc<Communicator>>,
    /// Those that divide what each of the former has, or that have experts of their own.
    divided: Option<Arc<Communicator>>,
    /// Those of the latter that have the same experts.
    alike: Option<Arc<Communicator>>,
}

impl NormRanks {
    fn of(context: &Context, entries: &[Entry], data_parallel: Option<&DataParallel>) -> Self {
        let any = |group| entries.iter().any(|one| one.over.contains(&group));
        let split = context.group(NVTEX_GRID_TP).filter(|_| any(NVTEX_GRID_TP));
        let experts = any(NVTEX_GRID_EP);
        let (divided, alike) = match data_parallel {
            Some(of) if of.is_divided() || experts => {
                (Some(of.communicator()), Some(of.ranks(true)))
            }
            None if experts => (context.group(NVTEX_GRID_EP), None),
            _ => (None, None),
        };
        let alike = alike.filter(|_| experts);
        Self { split: split.cloned(), divided: divided.cloned(), alike: alike.cloned() }
    }

    /// The number of this rank, and of all, in a group.
    fn within(group: &Option<Arc<Communicator>>) -> (usize, usize) {
        group.as_ref().map_or((0, 1), |group| (group.rank(), group.size()))
    }

    fn count(&self) -> usize {
        Self::within(&self.split).1 * Self::within(&self.divided).1
    }

    /// The number of this rank among all.
    fn place(&self) -> usize {
        let (rank, size) = Self::within(&self.divided);
        Self::within(&self.split).0 * size + rank
    }

    /// Whether the gradient of a parameter counts here: what all ranks of a group have alike counts on its first.
    fn counts(&self, entry: &Entry) -> bool {
        let first = |group| Self::within(group).0 == 0;
        let of = |group| entry.over.contains(&group);
        let same = if of(NVTEX_GRID_EP) { &self.alike } else { &self.divided };
        (of(NVTEX_GRID_TP) || first(&self.split)) && (entry.division.is_some() || first(same))
    }

    /// Brings the norms of all ranks together, of which each has written its own.
    fn gather(&self, norms: &Buffer, stream: cudaStream_t) -> Result<()> {
        let own = norms.shape.numel() / self.count();
        let of_divided = own * Self::within(&self.divided).1;
        let first = Self::within(&self.split).0 * of_divided;
        let part = slice(norms, first..first + of_divided);
        if let Some(divided) = &self.divided {
            let own = slice(&part, divided.rank() * own..(divided.rank() + 1) * own);
            divided.gather(&own, &part, "norms", stream)?;
        }
        match &self.split {
            Some(split) => split.gather(&part, norms, "norms", stream),
            None => Ok(()),
        }
    }
}

/// Refuses a parameter whose gradient would be that of one rank, or of one part.
fn check_ranks(
    name: &str,
    data_parallel: Option<&DataParallel>,
    (module, index): (&Arc<Module>, usize),
    division: Option<Division>,
) -> Result<()> {
    let (expected, got) = match data_parallel {
        Some(of) if !of.has(module, index) => {
            ("modules that it was created with", format!("parameter {name:?} of another module"))
        }
        None if division.is_some() => {
            ("the engine that divides gradients among ranks", format!("null, and part of {name:?}"))
        }
        _ => return Ok(()),
    };
    Err(Error::argument("config.data_parallel", expected, got))
}

fn first_master(
    run: &Run,
    parameter: &Parameter,
    (entry, master): (&Entry, &Buffer),
    settings: &Settings,
) -> Result<()> {
    let quantized = parameter.format.is_some();
    if settings.initial_masters {
        return ops::upload(master.ptr(), &parameter.initial()?[entry.part()], run.stream);
    }
    let value = &parameter.value.tensor;
    let own = parameter.own.map_or_else(|| entry.own(&value.rowwise), |[value, _]| value);
    if quantized && entry.division.is_some() {
        let part = Tensor { rowwise: own, ..value.clone() };
        return ops::dequantize(run, &part, &plain(*master));
    }
    if quantized {
        let mut matrix = plain(*master);
        let (rows, cols) = matrix.rowwise.shape.flatten();
        matrix.rowwise = Buffer::new(master.ptr(), kNVTEFloat32, &[rows, cols]);
        return ops::dequantize(run, value, &matrix);
    }
    ops::add(run, &plain(own), &plain(*master), false)
}

/// Casts all of a weight in FP8 alone, of which this rank keeps a part.
fn assign_part(
    run: &Run,
    parameter: &mut Parameter,
    (values, first): (&[f32], bool),
    (part, home): (Range<usize>, &Buffer),
) -> Result<()> {
    let before = Arc::clone(&parameter.value);
    let block = Arc::new(run.scratch(bytes(values.len(), home.dtype))?);
    let whole = block.buffer(0, home.dtype, &[values.len()]);
    parameter.move_to(&block, whole);
    let cast = super::host::assign(run, parameter, (values, first));
    parameter.value = before;
    cast?;
    let own = slice(&whole, part);
    ops::copy(home.ptr(), own.ptr(), own.bytes(), run.stream)
}

impl Options {
    /// Refuses what needs more than the part that a rank has.
    fn of_part(self, is_part: bool) -> Result<Self> {
        if self.update == Update::Muon && is_part {
            let expected = "an update of single elements: other ranks have parts of this parameter";
            return Err(Error::argument("options.rule", expected, "NVTEX_UPDATE_MUON"));
        }
        Ok(self)
    }
}

/// Where the state of a parameter will lie.
#[derive(Default)]
struct Planned {
    master: Option<Place>,
    state: [Option<Place>; 2],
    scales: [Option<Place>; 2],
    gradient: Option<Place>,
}

impl Settings {
    fn options(&self, name: &str, dims: &[usize], choose: &Choose) -> Result<Options> {
        let mut options = self.options;
        if dims.len() < 2 {
            options.weight_decay = 0.0;
        }
        if options.update == Update::Muon && dims.len() != 2 {
            options.update = Update::AdamW;
        }
        choose(name, dims, &mut options)?;
        for (field, value) in [
            ("options.weight_decay", options.weight_decay),
            ("options.learning_rate_factor", options.rate_factor),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(Error::argument(field, "a finite number, at least 0", value));
            }
        }
        if options.update == Update::Muon && dims.len() != 2 {
            let got = format!("NVTEX_UPDATE_MUON for a parameter of {} dimensions", dims.len());
            return Err(Error::argument(
                "options.rule",
                "NVTEX_UPDATE_MUON for matrices alone",
                got,
            ));
        }
        Ok(options)
    }

    fn plan(
        &self,
        entry: &Entry,
        dtype: NVTEDType,
        layout: &mut Layout,
        gradients: &mut Layout,
        given: bool,
    ) -> Planned {
        let (update, numel) = (entry.options.update, entry.part().len());
        if update == Update::None {
            return Planned::default();
        }
        let mut array = |dtype| layout.array(dtype, numel, ALIGNMENT);
        let remainder = self.masters == Masters::Remainder;
        let master = match (entry.quantized, dtype, self.masters) {
            (true, ..) => Some(array(kNVTEFloat32)),
            (_, kNVTEFloat32, _) | (_, _, Masters::None) => None,
            (_, kNVTEBFloat16, _) if remainder && update == Update::AdamW => {
                Some(array(kNVTEInt16))
            }
            _ => Some(array(kNVTEFloat32)),
        };
        let state = match update {
            Update::AdamW => [(); 2].map(|()| Some(array(self.adam.moment_dtype))),
            Update::Muon => [Some(array(kNVTEFloat32)), None],
            _ if self.momentum == 0.0 => [None; 2],
            _ => [Some(array(if master.is_some() { kNVTEFloat32 } else { dtype })), None],
        };
        let scales = [(); 2].map(|()| {
            let fp8 = update == Update::AdamW && self.adam.moment_dtype.is_fp8();
            fp8.then(|| layout.array(kNVTEFloat32, step::moment_blocks(numel), ALIGNMENT))
        });
        let low = self.low_precision_gradients && !entry.quantized;
        let of_gradient = if low { dtype } else { kNVTEFloat32 };
        let gradient = (!given).then(|| gradients.array(of_gradient, numel, ALIGNMENT));
        Planned { master, state, scales, gradient }
    }

    fn first_numbers(&self) -> Numbers {
        Numbers {
            step: 0,
            skip: 0,
            skipped: 0,
            good_steps: 0,
            non_finite: 0,
            base_rate: self.rate,
            rate: 0.0,
            loss_scale: self.loss.first,
            grad_scale: 1.0,
            norm: 0.0,
        }
    }

    fn numbers(
        &self,
        run: &Run,
        entries: &[Entry],
        factors: &[f32],
        ranks: usize,
    ) -> Result<(Block, NumberPlaces)> {
        let muon = || entries.iter().filter(|entry| entry.options.update == Update::Muon);
        let (num_muon, chunks) = (muon().count(), most_chunks(muon()));
        let mut layout = Layout::default();
        let mut floats = |count: usize| layout.array(kNVTEFloat32, count, ALIGNMENT);
        let places = NumberPlaces {
            factors: floats(factors.len()),
            rates: floats(factors.len()),
            norms: floats(GRADIENT_DTYPES.len() * ranks),
            partials: floats(step::NORM_PARTIALS),
            muon_norms: floats(num_muon),
            muon_partials: floats(num_muon * chunks),
            unused: floats(2),
            numbers: layout.array(kNVTEByte, size_of::<StepNumbers>(), ALIGNMENT),
        };
        let block = run.block(layout.bytes(), Lifetime::Persistent)?;
        let (bytes, stream) = (layout.bytes(), run.stream);
        ops::zero(&block.buffer(0, kNVTEByte, &[bytes]), stream)?;
        let array = |place: Place, count: usize| block.array(place, &[count]).ptr();
        ops::upload(array(places.factors, factors.len()), factors, stream)?;
        let numbers = array(places.numbers, size_of::<StepNumbers>());
        ops::upload(numbers, &[self.first_numbers()], stream)?;
        Ok((block, places))
    }
}

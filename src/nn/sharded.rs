//! Layers whose parameters are on a rank only while they run, since other ranks have the other parts of them. A layer
//! itself knows nothing of it: another one around it brings its parameters together and gives them up again.

use super::context::Run;
use super::memory::lock;
use super::parameter::Parameter;
use super::{Coming, Layer, Saved, SharedLayer, Tape, Tensors};
use crate::error::Result;
use crate::tensor::{Buffer, Shape};
use crate::types::NVTEDType;
use std::sync::{Arc, Mutex, TryLockError};

/// Parameters of one layer that come and go together.
pub trait Residence: Send + Sync {
    /// Begins to bring values together for a pass that will enter, beside what the layer before it does.
    fn begin(&self, run: &Run) -> Result<()>;

    /// The end of a call: gives up what [`Self::begin`] has begun, and what no pass has entered for, and completes what passes
    /// have left to later ones.
    fn stop(&self, run: &Run) -> Result<()>;

    /// Brings values together, and makes room for gradients, where a pass needs them.
    fn enter(&self, run: &Run, parameters: &mut [&mut Parameter], needs: Needs) -> Result<()>;

    /// All residences of the layer have entered: what earlier passes have left may run beside this one.
    fn entered(&self, run: &Run) -> Result<()>;

    /// The end of a pass that has entered with the same needs. `complete`: it was the last one to write gradients.
    fn leave(
        &self,
        run: &Run,
        parameters: &mut [&mut Parameter],
        needs: Needs,
        complete: bool,
    ) -> Result<()>;
}

/// What a pass needs of parameters.
#[derive(Clone, Copy)]
pub struct Needs {
    pub values: bool,
    pub gradients: bool,
}

/// The residences of a layer, or none when it has its parameters for itself again.
#[derive(Default)]
pub struct Residences {
    own: Vec<Arc<dyn Residence>>,
    /// Those of another layer, whose parameters this one uses.
    tied: Option<(SharedLayer, Vec<Arc<dyn Residence>>)>,
}

impl Residences {
    pub fn new(
        own: Vec<Arc<dyn Residence>>,
        tied: Option<(SharedLayer, Vec<Arc<dyn Residence>>)>,
    ) -> Self {
        Self { own, tied }
    }
}

/// What engines share with the layers around which they have put others.
pub type SharedResidences = Arc<Mutex<Residences>>;

struct Sharded {
    layer: Box<dyn Layer>,
    residences: SharedResidences,
}

/// Puts a layer around another one, whose residences it enters and leaves.
pub fn shard(layer: &SharedLayer, residences: &SharedResidences) {
    let mut layer = lock(layer);
    let nothing: Box<dyn Layer> = Box::new(super::Sequential::new(Vec::new()));
    let inner = std::mem::replace(&mut *layer, nothing);
    *layer = Box::new(Sharded { layer: inner, residences: Arc::clone(residences) });
}

/// Tells a layer what comes for it. One that is running has what it needs.
pub fn prepare(layer: &SharedLayer, run: &Run, coming: Coming) -> Result<()> {
    match layer.try_lock() {
        Ok(mut layer) => layer.prepare(run, coming),
        Err(TryLockError::Poisoned(layer)) => layer.into_inner().prepare(run, coming),
        Err(TryLockError::WouldBlock) => Ok(()),
    }
}

/// Applies `body` to the parameters of a layer.
pub fn with_parameters<R>(
    layer: &mut dyn Layer,
    body: impl FnOnce(&mut [&mut Parameter]) -> R,
) -> R {
    let mut all: Vec<_> = layer.parameters().into_iter().map(|(_, parameter)| parameter).collect();
    body(&mut all)
}

impl Sharded {
    /// A pass of the layer between the coming and the going of its parameters.
    fn pass<R>(
        &mut self,
        run: &Run,
        needs: Needs,
        (complete, next): (bool, Coming),
        body: impl FnOnce(&mut dyn Layer) -> Result<R>,
    ) -> Result<R> {
        let residences = lock(&self.residences);
        let layer = &mut *self.layer;
        let mut entered = Ok(());
        let (mut own, mut tied) = (0, 0);
        for one in &residences.own {
            entered =
                entered.and_then(|()| with_parameters(layer, |all| one.enter(run, all, needs)));
            own += usize::from(entered.is_ok());
        }
        if let Some((other, units)) = &residences.tied {
            for one in units {
                let mut other = lock(other);
                entered = entered
                    .and_then(|()| with_parameters(&mut **other, |all| one.enter(run, all, needs)));
                tied += usize::from(entered.is_ok());
            }
        }
        let mut all =
            residences.own.iter().chain(residences.tied.iter().flat_map(|(_, units)| units));
        let entered = entered.and_then(|()| all.try_for_each(|one| one.entered(run)));
        let prepared = entered.and_then(|()| match &run.next {
            Some(layer) => prepare(layer, run, next),
            None => Ok(()),
        });
        let result = prepared.and_then(|()| body(layer));
        let complete = complete && result.is_ok();
        let mut left = Ok(());
        for one in &residences.own[..own] {
            let leave = |all: &mut [&mut Parameter]| one.leave(run, all, needs, complete);
            left = left.and(with_parameters(layer, leave));
        }
        if let Some((other, units)) = &residences.tied {
            for one in &units[..tied] {
                // The other layer has not yet written its part of the gradient.
                let leave = |all: &mut [&mut Parameter]| one.leave(run, all, needs, false);
                left = left.and(with_parameters(&mut **lock(other), leave));
            }
        }
        let value = result?;
        left.map(|()| value)
    }
}

impl Layer for Sharded {
    fn arity(&self) -> (usize, usize) {
        self.layer.arity()
    }

    fn output(&self, input: &Buffer) -> (Shape, NVTEDType) {
        self.layer.output(input)
    }

    fn sites(&self) -> u32 {
        self.layer.sites()
    }

    fn forward(&mut self, run: &Run, inputs: &Tensors, outputs: &Tensors) -> Result<Saved> {
        let gradients = run.training && self.layer.has_gradients_in_forward();
        let needs = Needs { values: true, gradients };
        self.pass(run, needs, (false, Coming::Forward), |layer| layer.forward(run, inputs, outputs))
    }

    fn backward(&mut self, run: &Run, tape: &Tape, grads: [&Tensors; 2]) -> Result<()> {
        let needs = Needs { values: self.layer.reads_in_backward(), gradients: true };
        self.pass(run, needs, (true, Coming::Backward), |layer| layer.backward(run, tape, grads))
    }

    fn parameters(&mut self) -> Vec<(String, &mut Parameter)> {
        self.layer.parameters()
    }

    fn has_gradients_in_forward(&self) -> bool {
        self.layer.has_gradients_in_forward()
    }

    fn reads_in_backward(&self) -> bool {
        self.layer.reads_in_backward()
    }

    fn prepare(&mut self, run: &Run, coming: Coming) -> Result<()> {
        if coming == Coming::Backward && !self.layer.reads_in_backward() {
            return Ok(());
        }
        let residences = lock(&self.residences);
        let tied = residences.tied.iter().flat_map(|(_, units)| units);
        residences.own.iter().chain(tied).try_for_each(|one| match coming {
            Coming::Nothing => one.stop(run),
            _ => one.begin(run),
        })
    }

    fn tied(&self) -> Option<SharedLayer> {
        self.layer.tied()
    }
}

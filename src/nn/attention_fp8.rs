//! Queries, keys and values of an attention in FP8 (spec: modules, section 12): its products are, its
//! gradients are computed in high precision from what the forward pass read.

use super::context::Run;
use super::memory::{Block, Layout, Lifetime};
use super::ops::{self, plain};
use super::quantizer::{QTensor, Quantizer, Scaling, Source, Usage};
use super::state::Slot;
use crate::error::Result;
use crate::parallel::Communicator;
use crate::tensor::{Buffer, Tensor};
use crate::types::NVTE_QKV_Layout_Group::{self, *};
use crate::types::NVTEDType::{self, *};
use std::sync::Arc;

/// Current scaling: one scale for a tensor, from its own maximum.
const QUANTIZER: Quantizer =
    Quantizer { scaling: Scaling::Current { pow2: false, epsilon: 0.0 }, dtype: kNVTEFloat8E4M3 };

/// Three views of one, two or three tensors.
pub struct Fp8Heads {
    pub parts: [Tensor; 3],
    /// For each of queries, keys and values: the number of its tensor, and its first element there.
    places: [(usize, usize); 3],
    owners: Vec<QTensor>,
}

impl Fp8Heads {
    /// Casts the tensors that a layout has. Scales are those of the heads and of the rows of all ranks that have others.
    pub fn new(
        run: &Run,
        group: NVTE_QKV_Layout_Group,
        parts: [&Tensor; 3],
        [ranks, sequence]: [Option<Arc<Communicator>>; 2],
    ) -> Result<Self> {
        let slot = Slot { ranks, sequence, ..Slot::NONE };
        // Parts that are interleaved begin with the first of them.
        let first = match group {
            NVTE_H3D => [0, 0, 0],
            NVTE_HD_H2D => [0, 1, 1],
            _ => [0, 1, 2],
        };
        let dtype = parts[0].rowwise.dtype;
        let usage = Usage { rowwise: true, colwise: false };
        let (mut owners, mut places) = (Vec::new(), [(0, 0); 3]);
        for (i, part) in parts.iter().enumerate() {
            let begin = parts[first[i]].rowwise.ptr();
            if first[i] == i {
                let buffer = &part.rowwise;
                let cols = buffer.shape.flatten().1;
                let together = first.iter().filter(|&&other| other == i).count();
                let shape = (together * buffer.shape.numel() / cols, cols);
                let whole = plain(Buffer::new(begin, dtype, &[shape.0, shape.1]));
                let source = Source::Ready(&whole);
                owners.push(QUANTIZER.produce(run, shape, dtype, usage, Some(&slot), &source)?);
            }
            let bytes = part.rowwise.ptr() as usize - begin as usize;
            places[i] = (owners.len() - 1, bytes / (dtype.bits() / 8));
        }
        let views = Self::views(&owners, &places, parts);
        Ok(Self { parts: views, places, owners })
    }

    fn views(owners: &[QTensor], places: &[(usize, usize); 3], like: [&Tensor; 3]) -> [Tensor; 3] {
        std::array::from_fn(|i| {
            let (owner, at) = places[i];
            let tensor = &owners[owner].tensor;
            let (ptr, dtype) = (tensor.rowwise.ptr(), tensor.rowwise.dtype);
            let ptr = ptr.wrapping_byte_add(at * dtype.bits() / 8);
            let mut view = plain(Buffer::new(ptr, dtype, like[i].rowwise.shape.dims()));
            view.rowwise_scale_inv = tensor.rowwise_scale_inv;
            view
        })
    }

    /// The values in high precision, which live as long as their owners.
    pub fn dequantized(&self, run: &Run, dtype: NVTEDType) -> Result<([Tensor; 3], Vec<QTensor>)> {
        let mut owners = Vec::new();
        for owner in &self.owners {
            let shape = owner.tensor.rowwise.shape.flatten();
            let plain = QTensor::plain(run, shape, dtype, Lifetime::Scratch)?;
            ops::dequantize(run, &owner.tensor, &plain.tensor)?;
            owners.push(plain);
        }
        let views = Self::views(&owners, &self.places, self.parts.each_ref());
        Ok((views.map(|view| plain(view.rowwise)), owners))
    }
}

/// The scale of probabilities: they are at most 1, with dropout of more where it keeps them.
pub struct Probabilities {
    pub tensor: Tensor,
    _block: Block,
}

impl Probabilities {
    pub fn new(run: &Run, dropout: f32) -> Result<Self> {
        let scale = (448.0 * (1.0 - dropout)).log2().floor().exp2();
        let mut layout = Layout::default();
        let places = [0; 2].map(|_| layout.array(kNVTEFloat32, 1, 4));
        let block = run.block(layout.bytes(), Lifetime::Persistent)?;
        let [scale_place, inverse_place] = places.map(|place| block.array(place, &[1]));
        ops::upload(scale_place.ptr(), &[scale], run.stream)?;
        ops::upload(inverse_place.ptr(), &[1.0 / scale], run.stream)?;
        let mut tensor = plain(Buffer::UNSET);
        tensor.scale = scale_place;
        tensor.rowwise_scale_inv = inverse_place;
        Ok(Self { tensor, _block: block })
    }
}

//! A tensor argument of attention with the name that errors give it.

use super::rows::check_elements;
use crate::backend::args::AttentionTensor;
use crate::check;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Shape, Tensor, bytes};
use crate::types::NVTE_QKV_Format::{self, *};
use crate::types::{NVTEDType, NVTEScalingMode};
use std::ffi::c_void;

#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    pub(super) name: &'static str,
    tensor: Option<&'a Tensor>,
}

/// Dimensions of a tensor of heads.
pub(super) struct Sizes {
    /// Sequences, or pages; 0 for packed tokens.
    pub(super) batch: usize,
    pub(super) tokens: usize,
    pub(super) heads: usize,
    /// Elements of a head.
    pub(super) dim: usize,
}

impl<'a> Operand<'a> {
    pub(super) fn new(name: &'static str, tensor: &'a Tensor) -> Self {
        Self { name, tensor: Some(tensor) }
    }

    pub(super) fn optional(name: &'static str, tensor: Option<&'a Tensor>) -> Self {
        Self { name, tensor }
    }

    /// The row-wise data; an unset buffer where there is no tensor.
    pub(super) fn buffer(&self) -> &'a Buffer {
        self.tensor.map_or(&Buffer::UNSET, |tensor| &tensor.rowwise)
    }

    pub(super) fn scaling(&self) -> NVTEScalingMode {
        self.tensor.map_or(NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING, |tensor| tensor.mode)
    }

    /// The row-wise data, which must be there.
    pub(super) fn required(&self) -> Result<&'a Buffer> {
        if !self.buffer().is_set() {
            let name = format_args!("{}.data", self.name);
            return Err(Error::argument(name, "row-wise data", "no data"));
        }
        Ok(self.buffer())
    }

    /// Dimensions of a tensor of heads in a format.
    pub(super) fn sizes(&self, format: NVTE_QKV_Format) -> Result<Sizes> {
        let shape = &self.required()?.shape;
        Ok(match (format, shape.dims()) {
            (NVTE_THD, &[tokens, heads, dim]) => Sizes { batch: 0, tokens, heads, dim },
            (NVTE_SBHD, &[tokens, batch, heads, dim])
            | (NVTE_BSHD, &[batch, tokens, heads, dim])
            | (NVTE_BHSD, &[batch, heads, tokens, dim]) => Sizes { batch, tokens, heads, dim },
            _ => {
                let expected = match format {
                    NVTE_THD => "[tokens, heads, dim]",
                    NVTE_SBHD => "[length, batch, heads, dim]",
                    NVTE_BHSD => "[batch, heads, length, dim]",
                    _ => "[batch, length, heads, dim]",
                };
                return Err(Error::argument(format_args!("{}.shape", self.name), expected, shape));
            }
        })
    }

    pub(super) fn has_shape(&self, expected: &Shape) -> Result<()> {
        check::shape(self.name, &self.required()?.shape, expected)
    }

    /// As [`Self::has_shape`], with any first dimension that is not less.
    pub(super) fn has_slots(&self, expected: &Shape) -> Result<()> {
        let shape = &self.required()?.shape;
        match (shape.dims(), expected.dims()) {
            ([slots, row @ ..], [least, wanted @ ..]) if slots >= least && row == wanted => Ok(()),
            _ => {
                let expected = format!("{expected}, or more of the first dimension");
                Err(Error::argument(format_args!("{}.shape", self.name), expected, shape))
            }
        }
    }

    /// Places address and scales of a tensor with rows of `row` elements. Scales are looked at in FP8
    /// attention alone.
    pub(super) fn place(&self, to: &mut AttentionTensor, row: usize, fp8: bool) -> Result<()> {
        let buffer = self.required()?;
        to.data = self.vector_address(buffer, row)?;
        if fp8 { self.scales(to, buffer.dtype.is_fp8()) } else { Ok(()) }
    }

    /// Takes over the fields of one float that the tensor has.
    pub(super) fn scales(&self, to: &mut AttentionTensor, scaled: bool) -> Result<()> {
        let (name, Some(tensor)) = (self.name, self.tensor) else { return Ok(()) };
        to.amax = check::optional_scalar(format_args!("{name}.amax"), &tensor.amax)?;
        if scaled {
            to.scale = check::optional_scalar(format_args!("{name}.scale"), &tensor.scale)?;
            to.scale_inv = check::optional_scalar(
                format_args!("{name}.scale_inv"),
                &tensor.rowwise_scale_inv,
            )?;
        }
        Ok(())
    }

    /// Address of `length` plain numbers; there may be more, since callers keep arrays of their largest batch.
    pub(super) fn numbers(&self, dtype: NVTEDType, length: usize) -> Result<*mut c_void> {
        let buffer = self.required()?;
        check::dtype(self.name, buffer.dtype, &[dtype])?;
        check_elements(self.name, buffer, length)?;
        check::pointer(format_args!("{}.data", self.name), buffer)
    }

    /// Address of the memory of this argument, taken as `buffer`: aligned to 16 bytes if rows of `row` elements
    /// are multiples of them, because they are then read or written by vectors, else to an element.
    pub(super) fn vector_address(&self, buffer: &Buffer, row: usize) -> Result<*mut c_void> {
        let name = format_args!("{}.data", self.name);
        let data = check::pointer(name, buffer)?;
        let vectors = (row * buffer.dtype.bits()).is_multiple_of(128);
        if vectors && !(data as usize).is_multiple_of(16) {
            let expected =
                format!("a pointer aligned to 16 bytes (rows of {row} {})", buffer.dtype);
            return Err(Error::argument(name, expected, format!("{data:p}")));
        }
        Ok(data)
    }

    /// Refuses tensors that do not lie `elements` behind another one, as those of a layout that interleaves
    /// do: their shapes say nothing about what lies between their rows.
    pub(super) fn lies_behind(&self, first: &Self, elements: usize) -> Result<()> {
        let (at, from) = (self.required()?.ptr(), first.required()?.ptr());
        if at == from.wrapping_byte_add(bytes(elements, self.buffer().dtype)) {
            return Ok(());
        }
        let expected =
            format!("{}.data + {elements} elements (qkv_layout interleaves them)", first.name);
        let offset = (at as usize).wrapping_sub(from as usize) as isize;
        let got = format!("{}.data + {offset} bytes", first.name);
        Err(Error::argument(format_args!("{}.data", self.name), expected, got))
    }

    /// The last four dimensions, for a bias.
    pub(super) fn last_dims(&self) -> Option<[usize; 4]> {
        self.buffer().shape.dims().last_chunk().copied()
    }
}

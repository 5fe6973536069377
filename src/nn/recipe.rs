//! Recipes: which quantizer each operand of a product gets (spec: modules, section 2).

use super::quantizer::{Quantizer, Scaling};
use crate::error::{Error, Result};
use crate::types::NVTEDType::{self, *};
use std::ffi::{CString, c_void};
use std::fmt::{self, Display, Formatter};

/// Operands of the products of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Input = 0,
    Weight = 1,
    GradOutput = 2,
}

pub const ROLES: [Role; 3] = [Role::Input, Role::Weight, Role::GradOutput];

impl Role {
    pub fn name(self) -> &'static str {
        ["input", "weight", "grad_output"][self as usize]
    }
}

impl Scaling {
    /// NVFP4 of an operand, with or without random Hadamard transforms and stochastic rounding. The transforms are for
    /// the operands of wgrad, which weights are not, and gradients alone are rounded so.
    pub fn nvfp4(role: Role, square: bool, (hadamard, stochastic): (bool, bool)) -> Self {
        Self::Nvfp4 {
            square,
            hadamard: hadamard && role != Role::Weight,
            stochastic: stochastic && role == Role::GradOutput,
        }
    }
}

/// What a recipe says of the operands of one role.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoleOptions {
    pub pow2: bool,
    pub epsilon: f32,
    /// Blocks along rows (1) or square ones (2).
    pub block_dim: i32,
}

/// Most rows of a history.
pub const MOST_HISTORY: usize = 1 << 20;

/// How scales follow from the maxima of earlier steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    pub most_recent: bool,
    pub history_length: usize,
    pub margin: f32,
    /// Updates between two new scales.
    pub interval: u32,
    pub reduce: bool,
}

/// The caller's choice for one operand of one product: null-terminated name of the layer, role, and what the recipe
/// says without the choice.
pub type Choose = dyn Fn(&CString, Role, Quantizer) -> Result<Quantizer> + Send + Sync;

/// What the backward products multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackwardOperands {
    /// Gradients, inputs and weights as the recipe casts them.
    Quantized,
    /// Gradients, inputs and weights as they were before the cast.
    HighPrecision,
    /// Gradients as they were, inputs and weights as the forward product read them.
    Dequantized,
}

impl Display for BackwardOperands {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Quantized => "NVTEX_BACKWARD_QUANTIZED",
            Self::HighPrecision => "NVTEX_BACKWARD_HIGH_PRECISION",
            Self::Dequantized => "NVTEX_BACKWARD_DEQUANTIZED",
        })
    }
}

pub enum Kind {
    Delayed,
    Current,
    Block,
    Mxfp8,
    Nvfp4,
    /// Everything is in high precision but what is chosen otherwise.
    Custom,
}

pub struct Recipe {
    pub kind: Kind,
    pub choose: Option<Box<Choose>>,
    /// Gradients are E5M2, everything else E4M3.
    pub hybrid: bool,
    pub rule: Rule,
    pub roles: [RoleOptions; 3],
    /// Whether the products of the forward pass, dgrad and wgrad add with a split accumulator.
    pub split: [bool; 3],
    pub backward: BackwardOperands,
    /// Attention multiplies in FP8.
    pub attention: bool,
    /// Of NVFP4: random Hadamard transforms of the operands of wgrad, stochastic rounding of gradients.
    pub hadamard: bool,
    pub stochastic: bool,
}

impl Recipe {
    /// Refuses what does not go together. `name` prefixes the fields.
    pub fn check(&self, name: &str) -> Result<()> {
        let refuse = |field: &str, expected: &str, got: &dyn std::fmt::Display| {
            Err(Error::argument(format!("{name}.{field}"), expected, got))
        };
        let rule = &self.rule;
        if rule.history_length == 0 || rule.history_length > MOST_HISTORY {
            let expected = format!("1 to {MOST_HISTORY}");
            return refuse("amax_history_len", &expected, &rule.history_length);
        }
        if !(rule.margin.is_finite() && rule.margin.abs() <= 64.0) {
            return refuse("margin", "-64 to 64", &rule.margin);
        }
        if rule.interval == 0 {
            return refuse("update_interval", "at least 1", &0);
        }
        let delayed = matches!(self.kind, Kind::Delayed);
        if delayed && self.backward != BackwardOperands::Quantized {
            let expected = "NVTEX_BACKWARD_QUANTIZED (the only one of delayed scaling)";
            return refuse("backward", expected, &self.backward);
        }
        if self.attention && !delayed && !matches!(self.kind, Kind::Current) {
            let expected =
                "false (FP8 attention has one scale for a tensor, this recipe has others)";
            return refuse("fp8_dpa", expected, &true);
        }
        let (block, mxfp8) = (matches!(self.kind, Kind::Block), matches!(self.kind, Kind::Mxfp8));
        let nvfp4 = matches!(self.kind, Kind::Nvfp4);
        for role in ROLES {
            let options = &self.roles[role as usize];
            let field = |field: &str| format!("{}.{field}", role.name());
            if !(options.epsilon.is_finite() && options.epsilon >= 0.0) {
                let expected = "a finite number, at least 0";
                return refuse(&field("amax_epsilon"), expected, &options.epsilon);
            }
            let square_allowed = block || (mxfp8 || nvfp4) && role == Role::Weight;
            if options.block_dim != 1 && !(options.block_dim == 2 && square_allowed) {
                let expected = match (block, mxfp8) {
                    (true, _) => "1 (1 x 128) or 2 (128 x 128)",
                    (_, true) => "1 (1 x 32), or 2 (32 x 32) for weights",
                    _ if nvfp4 => "1 (1 x 16), or 2 (16 x 16) for weights",
                    _ => "1 (this recipe has no blocks)",
                };
                return refuse(&field("block_dim"), expected, &options.block_dim);
            }
        }
        if block {
            for [a, b] in [[0, 1], [1, 2], [0, 2]] {
                if self.roles[a].block_dim == 2 && self.roles[b].block_dim == 2 {
                    let field = format!("{}.block_dim", ROLES[b].name());
                    let expected =
                        format!("1 ({} has 2, and they are multiplied)", ROLES[a].name());
                    return refuse(&field, &expected, &2);
                }
            }
        }
        for (i, product) in ["fprop", "dgrad", "wgrad"].into_iter().enumerate() {
            if block && !self.split[i] {
                let field = format!("split_accumulator_{product}");
                return refuse(&field, "true (FP8 blocks are summed in float32)", &false);
            }
        }
        Ok(())
    }

    fn dtype(&self, role: Role) -> NVTEDType {
        if self.hybrid && role == Role::GradOutput { kNVTEFloat8E5M2 } else { kNVTEFloat8E4M3 }
    }

    /// The quantizers of a layer's operands, which must go together.
    pub fn quantizers(&self, layer: &CString) -> Result<[Quantizer; 3]> {
        let mut chosen = [Quantizer::NONE; 3];
        for role in ROLES {
            let options = self.roles[role as usize];
            let (pow2, epsilon, square) = (options.pow2, options.epsilon, options.block_dim == 2);
            let scaling = match &self.kind {
                Kind::Delayed => Scaling::Delayed,
                Kind::Current => Scaling::Current { pow2, epsilon },
                Kind::Block => Scaling::Block { square, pow2, epsilon },
                Kind::Mxfp8 => Scaling::Mxfp8 { square },
                Kind::Nvfp4 => Scaling::nvfp4(role, square, (self.hadamard, self.stochastic)),
                Kind::Custom => Scaling::None,
            };
            let dtype = match self.kind {
                Kind::Nvfp4 => kNVTEFloat4E2M1,
                _ => self.dtype(role),
            };
            let quantizer = Quantizer { scaling, dtype };
            chosen[role as usize] = match &self.choose {
                Some(choose) => choose(layer, role, quantizer)?,
                None => quantizer,
            };
        }
        if self.backward != BackwardOperands::Quantized {
            // Gradients are not cast.
            chosen[Role::GradOutput as usize] = Quantizer::NONE;
            if chosen.iter().any(Quantizer::is_delayed) {
                let argument = format!("recipe.choose({})", layer.to_string_lossy());
                let expected = "no delayed scaling (backward is not NVTEX_BACKWARD_QUANTIZED)";
                return Err(Error::argument(argument, expected, "delayed scaling"));
            }
        }
        let pairs: &[[usize; 2]] = match self.backward {
            BackwardOperands::Quantized => &[[0, 1], [1, 2], [0, 2]],
            _ => &[[0, 1]],
        };
        for &[a, b] in pairs {
            if !chosen[a].multiplies(&chosen[b]) {
                let name = layer.to_string_lossy();
                let expected = format!(
                    "a choice whose product with that of {} ({}) exists",
                    ROLES[a].name(),
                    chosen[a]
                );
                let argument = format!("recipe.choose({name}, {})", ROLES[b].name());
                return Err(Error::argument(argument, expected, chosen[b]));
            }
        }
        Ok(chosen)
    }
}

/// A group of ranks, as the caller's communicator knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group(pub usize);

impl Group {
    pub fn from_c(group: *mut c_void) -> Option<Self> {
        (!group.is_null()).then_some(Self(group as usize))
    }

    pub fn to_c(self) -> *mut c_void {
        self.0 as *mut c_void
    }
}

//! Training around the layers: optimizers over the parameters of modules, checkpoints, pretrained weights and batches
//! of tokens. Nothing here touches device memory but through operators and copies.

pub mod capi;
mod checkpoint;
mod data_parallel;
mod host;
mod optimizer;
mod pretrained;
mod ranks;
mod safetensors;
mod tokens;
mod unit;

pub use checkpoint::{Checkpoint, Extra};
pub use data_parallel::{DataParallel, Level, Sharing};
pub use optimizer::{
    AdamSettings, Clipping, Entry, LossScaling, Masters, Optimizer, Options, Settings, Update,
};
pub use pretrained::{Llama, LlamaSizes, Pretrained, Rows, Target};
pub use tokens::{Position, TokenLoader, TokenSettings};

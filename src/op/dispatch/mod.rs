//! Which implementation runs an operator: what C programs may ask and say.

pub mod exports_plugins;

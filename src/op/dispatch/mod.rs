//! Which implementation runs an operator: what C programs may ask and say.

pub mod exports;
pub mod exports_domains;
pub mod exports_plugins;

use crate::backend::policy::Policy;
use crate::handle::{Kind, Slab};

static POLICIES: Slab<&'static Policy, exports::NVTEXPolicy_st> = Slab::new(Kind::Policy);

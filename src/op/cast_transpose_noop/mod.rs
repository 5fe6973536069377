//! Transposes that a device flag can switch off (spec: quantize, sections 9.1 and 9.5).

pub mod exports;

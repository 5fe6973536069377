//! Frequencies of rotary position embeddings.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;

/// Angles of rotary embeddings.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXRotaryConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Default: 10000.
    pub base: f32,
    /// Position of the first row. Default: 0.
    pub offset: usize,
    /// Divides positions by this factor; 0 (default): none.
    pub interpolation_factor: f32,
    /// With a factor f and more rows than f times this length, positions are divided by `rows / length`
    /// instead. 0 (default): never.
    pub pretrained_length: usize,
    /// The two entries of a pair's angle are neighbours, instead of lying in the two halves of the
    /// row.
    pub interleaved: MaybeUninit<bool>,
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_rotary_config_init(
    config: *mut NVTEXRotaryConfig,
    struct_size: usize,
) {
    guard("nvtex_rotary_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXRotaryConfig::default()) }
    });
}

/// Writes the angles of rotary embeddings: `a(p, i) = p base^(-2 i / d2)` for positions p from `offset`
/// on and pairs i. They are computed in float64 on the host.
///
/// Shapes: `frequencies` `[rows, 1, 1, d2]`, Float32, d2 even. Null config: defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_rotary_frequencies(
    frequencies: NVTETensor,
    config: *const NVTEXRotaryConfig,
    stream: cudaStream_t,
) {
    // SAFETY: the caller vouches for the config.
    guard("nvtex_rotary_frequencies", || unsafe { rotary(frequencies, config, stream) });
}

config!(NVTEXRotaryConfig {
    struct_size,
    base,
    offset,
    interpolation_factor,
    pretrained_length,
    interleaved
});

/// # Safety
/// As [`read_config`]; null gives defaults.
unsafe fn rotary(
    frequencies: NVTETensor,
    config: *const NVTEXRotaryConfig,
    stream: cudaStream_t,
) -> Result<()> {
    let config = match config.is_null() {
        true => NVTEXRotaryConfig::default(),
        // SAFETY: the caller vouches for the config.
        false => unsafe { read_config("config", config) }?,
    };
    let buffer = check::tensor("frequencies", frequencies)?.rowwise;
    check::dtype("frequencies", buffer.dtype, &[NVTEDType::kNVTEFloat32])?;
    let (rows, cols) = match *buffer.shape.dims() {
        [rows, 1, 1, cols] if cols > 0 && cols.is_multiple_of(2) => (rows, cols),
        _ => {
            let expected = "[rows, 1, 1, d2] with an even d2";
            return Err(Error::argument("frequencies.shape", expected, buffer.shape));
        }
    };
    check::pointer("frequencies.data", &buffer)?;
    let factor = f64::from(config.interpolation_factor);
    if !(factor.is_finite() && factor >= 0.0) {
        return Err(Error::argument("config.interpolation_factor", "at least 0", factor));
    }
    if !(config.base.is_finite() && config.base > 0.0) {
        return Err(Error::argument("config.base", "a finite number above 0", config.base));
    }
    let pretrained = config.pretrained_length as f64;
    let divisor = match rows as f64 > pretrained * factor && pretrained * factor > 0.0 {
        true => rows as f64 / pretrained,
        false if factor > 0.0 => factor,
        false => 1.0,
    };
    let pair = |column| if truth(config.interleaved) { column / 2 } else { column % (cols / 2) };
    let angle = |row: usize, column: usize| {
        let rate = f64::from(config.base).powf(-2.0 * pair(column) as f64 / cols as f64);
        ((config.offset as f64 + row as f64) / divisor * rate) as f32
    };
    let mut angles = host_room(rows * cols)?;
    for row in 0..rows {
        angles.extend((0..cols).map(|column| angle(row, column)));
    }
    upload(buffer.ptr(), &angles, stream)
}

impl Default for NVTEXRotaryConfig {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            base: 10000.0,
            offset: 0,
            interpolation_factor: 0.0,
            pretrained_length: 0,
            interleaved: MaybeUninit::new(false),
        }
    }
}

//! Groups of matrices.

/// Member matrices that lie one after the other in one buffer; dimensions are on the device.
///
/// Member t is `[first_dims[t], last_dims[t]]`, contiguous and row-major, and begins at element
/// `offsets[t]`; column-wise data of it begin there too. A null `first_dims` stands for `rows` of the
/// arguments (`rows / num_tensors` if `last_dims` is null, too), a null `last_dims` for `cols`, null
/// `offsets` for members without gaps. The matrices that a mode's scales form are concatenated
/// likewise, each padded as that of a lone matrix. Elements that no member has are not touched.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// 0: a single matrix, and no other field is read.
    pub num_tensors: usize,
    pub first_dims: *const i64,
    pub last_dims: *const i64,
    /// `num_tensors + 1` entries.
    pub offsets: *const i64,
}

impl Group {
    /// A single matrix.
    pub const NONE: Self = Self {
        num_tensors: 0,
        first_dims: std::ptr::null(),
        last_dims: std::ptr::null(),
        offsets: std::ptr::null(),
    };
}

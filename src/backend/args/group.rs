//! Groups of matrices.

/// Member matrices that lie one after the other in one buffer; dimensions are on the device.
///
/// Member t is `[first_dims[t], last_dims[t]]`, contiguous and row-major, and begins at element
/// `offsets[t]`; column-wise data of it begin there too. A null `first_dims` stands for `rows` of the
/// arguments (`rows / num_tensors` if `last_dims` is null, too), a null `last_dims` for `cols`, null
/// `offsets` for members without gaps. The matrices that a mode's scales form are concatenated
/// likewise, each padded as that of a lone matrix. Elements that no member has are not touched.
///
/// What the arrays hold is not trusted. A member has no elements if one of its dimensions from the device
/// is negative or larger than `most_dim`, if both together are more than the group has, or if
/// its scales alone are more than there are. A member that would begin before or end after the data, or
/// whose scales would, is moved back into them, cut or left out. So a wrong group gives wrong values, but
/// only inside of the buffers that the arguments declare.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// 0: a single matrix, and no other field is read.
    pub num_tensors: usize,
    pub first_dims: *const i64,
    pub last_dims: *const i64,
    /// `num_tensors + 1` entries.
    pub offsets: *const i64,
    /// Largest dimension that `first_dims` and `last_dims` may give: that of the whole group, the product of
    /// both if both vary; less where there is not room for the scales of a member of that.
    pub most_dim: usize,
    /// Elements that every buffer of data has room for; at least those of the whole group.
    pub elements: usize,
    /// Entries that the row-wise scales have room for, if the mode's scales form matrices: at least those
    /// of a member of `most_dim`, unless both dimensions are on the device.
    pub row_scales: usize,
    /// As `row_scales`.
    pub col_scales: usize,
}

impl Group {
    /// A single matrix.
    pub const NONE: Self = Self {
        num_tensors: 0,
        first_dims: std::ptr::null(),
        last_dims: std::ptr::null(),
        offsets: std::ptr::null(),
        most_dim: 0,
        elements: 0,
        row_scales: 0,
        col_scales: 0,
    };
}

//! Shapes of scale matrices, in numbers alone: the benchmark, which knows the library by its C ABI only, includes
//! this file too.

/// Values of `NVTEScalingMode` whose scales belong to blocks.
pub const MXFP8: i32 = 1;
pub const BLOCKS_1D: i32 = 2;
pub const BLOCKS_2D: i32 = 3;

/// Rows of the scales of a matrix in blocks, and the entries that each needs; row-wise or column-wise.
pub fn scale_shape(mode: i32, colwise: bool, (rows, cols): (usize, usize)) -> [usize; 2] {
    let (down, across) = (rows.div_ceil(128), cols.div_ceil(128));
    match (mode, colwise) {
        (MXFP8, false) => [128 * down, 4 * across],
        (MXFP8, true) => [4 * down, 128 * across],
        (BLOCKS_1D, false) => [across, rows],
        (BLOCKS_1D, true) => [down, cols],
        (BLOCKS_2D, false) => [down, across],
        (BLOCKS_2D, true) => [across, down],
        // One scale for the whole tensor.
        _ => [1, 1],
    }
}

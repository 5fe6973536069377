//! The scaling modes, one row each: what of a matrix shares a scale, and how data and scales are stored.
//! Kernels read the table in `nvte/backend/scaling.h`, which tests/abi.rs generates from it.

use crate::types::NVTEDType::{self, *};
use crate::types::NVTEScalingMode::{self, *};

/// A scaling mode.
///
/// A direction of a matrix has lines and a length: row-wise, the lines are its rows, and blocks lie along
/// its columns; column-wise, the lines are its columns, and blocks lie along its rows.
#[derive(Debug)]
pub struct Scaling {
    pub mode: NVTEScalingMode,
    /// Lines that share a scale, and elements of a line that do; 0: the whole tensor has one scale.
    pub block: [usize; 2],
    /// Dtypes of quantized elements.
    pub elements: &'static [NVTEDType],
    /// Dtypes of scales; all have the size of the first.
    pub scales: &'static [NVTEDType],
    /// Lines and blocks of the scale matrix are rounded up to multiples of these.
    pub padding: [usize; 2],
    /// Column-wise data, and their scales, are stored transposed.
    pub transposes: bool,
    /// Scales of one block of all lines lie side by side, not those of one line.
    pub block_major: bool,
    /// Scales may be stored in the tiles of 128 x 4 that the matrix units read.
    pub swizzles: bool,
}

const FP8: &[NVTEDType] = &[kNVTEFloat8E4M3, kNVTEFloat8E5M2];
const E8M0: &[NVTEDType] = &[kNVTEFloat8E8M0, kNVTEByte];

/// All modes that tensors of the ABI may have, in the order of their numbers.
pub const MODES: [Scaling; 5] = [
    Scaling {
        mode: NVTE_DELAYED_TENSOR_SCALING,
        block: [0, 0],
        elements: FP8,
        scales: &[kNVTEFloat32],
        padding: [1, 1],
        transposes: true,
        block_major: false,
        swizzles: false,
    },
    Scaling {
        mode: NVTE_MXFP8_1D_SCALING,
        block: [1, 32],
        elements: FP8,
        scales: E8M0,
        padding: [128, 4],
        transposes: false,
        block_major: false,
        swizzles: true,
    },
    Scaling {
        mode: NVTE_BLOCK_SCALING_1D,
        block: [1, 128],
        elements: FP8,
        scales: &[kNVTEFloat32],
        padding: [1, 1],
        transposes: true,
        block_major: true,
        swizzles: false,
    },
    Scaling {
        mode: NVTE_BLOCK_SCALING_2D,
        block: [128, 128],
        elements: FP8,
        scales: &[kNVTEFloat32],
        padding: [1, 1],
        transposes: true,
        block_major: false,
        swizzles: false,
    },
    Scaling {
        mode: NVTE_NVFP4_1D_SCALING,
        block: [1, 16],
        elements: &[kNVTEFloat4E2M1],
        scales: &[kNVTEFloat8E4M3],
        padding: [128, 4],
        transposes: true,
        block_major: false,
        swizzles: true,
    },
];

impl NVTEScalingMode {
    /// The row of a mode; that of a single scale for `NVTE_INVALID_SCALING`, which no operator takes.
    pub const fn scaling(self) -> &'static Scaling {
        const TABLE: &[Scaling; 5] = &MODES;
        match self {
            NVTE_DELAYED_TENSOR_SCALING | NVTE_INVALID_SCALING => &TABLE[0],
            NVTE_MXFP8_1D_SCALING => &TABLE[1],
            NVTE_BLOCK_SCALING_1D => &TABLE[2],
            NVTE_BLOCK_SCALING_2D => &TABLE[3],
            NVTE_NVFP4_1D_SCALING => &TABLE[4],
        }
    }

    /// One scale for the whole tensor.
    pub const fn per_tensor(self) -> bool {
        self.scaling().block[0] == 0
    }

    /// FP8 block scaling: each block, of 1 x 128 or 128 x 128 elements, has a scale in float32.
    pub const fn float_blocks(self) -> bool {
        !self.per_tensor() && matches!(self.scaling().scales, [kNVTEFloat32])
    }

    /// Blocks are squares: lines of a direction share scales, too.
    pub const fn square(self) -> bool {
        self.scaling().block[0] > 1
    }
}

impl Scaling {
    /// Rows and columns of the matrix that share a scale of a direction.
    pub const fn area(&self, colwise: bool) -> (usize, usize) {
        match (self.block, colwise) {
            ([0, _], _) => (usize::MAX, usize::MAX),
            ([height, width], false) => (height, width),
            ([height, width], true) => (width, height),
        }
    }

    /// Groups of lines with scales of their own, and blocks in each, of a direction of a `[rows, cols]` matrix.
    pub const fn blocks(&self, colwise: bool, (rows, cols): (usize, usize)) -> [usize; 2] {
        let [lines, length] = if colwise { [cols, rows] } else { [rows, cols] };
        match self.block {
            [0, _] => [1, 1],
            [height, width] => [lines.div_ceil(height), length.div_ceil(width)],
        }
    }

    /// Whether a direction's scale matrix has a row for each block, not for each line.
    pub const fn rows_are_blocks(&self, colwise: bool) -> bool {
        self.block_major || colwise && !self.transposes
    }

    /// Whether the scale matrix has exactly the documented shape, not one with longer rows.
    pub const fn has_padding(&self) -> bool {
        self.padding[0] > 1
    }

    /// Whether the data of a direction are stored transposed.
    pub const fn transposed(&self, colwise: bool) -> bool {
        colwise && self.transposes
    }

    /// Both dimensions of the stored scale matrix, with its padding.
    pub const fn scale_dims(&self, colwise: bool, shape: (usize, usize)) -> (usize, usize) {
        let [lines, blocks] = self.blocks(colwise, shape);
        let lines = lines.next_multiple_of(self.padding[0]);
        let blocks = blocks.next_multiple_of(self.padding[1]);
        if self.rows_are_blocks(colwise) { (blocks, lines) } else { (lines, blocks) }
    }

    /// Elements from one row of a group member's scale matrix to the next: a multiple of 4.
    pub const fn scale_pitch(&self, colwise: bool, shape: (usize, usize)) -> usize {
        self.scale_dims(colwise, shape).1.next_multiple_of(4)
    }

    /// Entries of a group member's scale matrix with its padding; 1 for a whole tensor.
    pub const fn scale_entries(&self, colwise: bool, shape: (usize, usize)) -> usize {
        match self.block[0] {
            0 => 1,
            _ => self.scale_dims(colwise, shape).0.saturating_mul(self.scale_pitch(colwise, shape)),
        }
    }

    pub fn scale_bytes(&self) -> usize {
        self.scales[0].bits() / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shapes that spec quantize, section 2, gives for 100 x 200.
    #[test]
    fn scale_matrices_have_the_documented_shapes() {
        let dims = |mode: NVTEScalingMode| {
            [false, true].map(|colwise| mode.scaling().scale_dims(colwise, (100, 200)))
        };
        assert_eq!(dims(NVTE_BLOCK_SCALING_1D), [(2, 100), (1, 200)]);
        assert_eq!(dims(NVTE_BLOCK_SCALING_2D), [(1, 2), (2, 1)]);
        assert_eq!(dims(NVTE_MXFP8_1D_SCALING), [(128, 8), (4, 256)]);
        assert_eq!(dims(NVTE_NVFP4_1D_SCALING), [(128, 16), (256, 8)]);
    }

    #[test]
    fn every_mode_has_its_row() {
        for row in &MODES {
            assert_eq!(row.mode.scaling().mode, row.mode);
        }
    }
}

//! Layouts of queries, keys and values: which of them lie in one tensor, and in which order their dimensions
//! are (spec attention 2).

use crate::types::NVTE_QKV_Format::{self, *};
use crate::types::NVTE_QKV_Layout::{self, *};
use crate::types::NVTE_QKV_Layout_Group::{self, *};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Which of queries, keys and values are parts of one tensor.
    pub group: NVTE_QKV_Layout_Group,
    /// The order of dimensions of the queries, and of the keys and values.
    pub q: NVTE_QKV_Format,
    pub kv: NVTE_QKV_Format,
}

impl Layout {
    /// The layout of a number of the C API; none for NVTE_QKV_Layout_NOT_SET.
    pub fn of(layout: NVTE_QKV_Layout) -> Option<Self> {
        let (group, q, kv) = match layout {
            NVTE_SB3HD => (NVTE_3HD, NVTE_SBHD, NVTE_SBHD),
            NVTE_SBH3D => (NVTE_H3D, NVTE_SBHD, NVTE_SBHD),
            NVTE_SBHD_SB2HD => (NVTE_HD_2HD, NVTE_SBHD, NVTE_SBHD),
            NVTE_SBHD_SBH2D => (NVTE_HD_H2D, NVTE_SBHD, NVTE_SBHD),
            NVTE_SBHD_SBHD_SBHD => (NVTE_HD_HD_HD, NVTE_SBHD, NVTE_SBHD),
            NVTE_BS3HD => (NVTE_3HD, NVTE_BSHD, NVTE_BSHD),
            NVTE_BSH3D => (NVTE_H3D, NVTE_BSHD, NVTE_BSHD),
            NVTE_BSHD_BS2HD => (NVTE_HD_2HD, NVTE_BSHD, NVTE_BSHD),
            NVTE_BSHD_BSH2D => (NVTE_HD_H2D, NVTE_BSHD, NVTE_BSHD),
            NVTE_BSHD_BSHD_BSHD => (NVTE_HD_HD_HD, NVTE_BSHD, NVTE_BSHD),
            NVTE_T3HD => (NVTE_3HD, NVTE_THD, NVTE_THD),
            NVTE_TH3D => (NVTE_H3D, NVTE_THD, NVTE_THD),
            NVTE_THD_T2HD => (NVTE_HD_2HD, NVTE_THD, NVTE_THD),
            NVTE_THD_TH2D => (NVTE_HD_H2D, NVTE_THD, NVTE_THD),
            NVTE_THD_THD_THD => (NVTE_HD_HD_HD, NVTE_THD, NVTE_THD),
            NVTE_SBHD_BSHD_BSHD => (NVTE_HD_HD_HD, NVTE_SBHD, NVTE_BSHD),
            NVTE_BSHD_SBHD_SBHD => (NVTE_HD_HD_HD, NVTE_BSHD, NVTE_SBHD),
            NVTE_THD_BSHD_BSHD => (NVTE_HD_HD_HD, NVTE_THD, NVTE_BSHD),
            NVTE_THD_SBHD_SBHD => (NVTE_HD_HD_HD, NVTE_THD, NVTE_SBHD),
            NVTE_Paged_KV_BSHD_BSHD_BSHD => (NVTE_Paged_KV_HD_HD_HD, NVTE_BSHD, NVTE_BSHD),
            NVTE_Paged_KV_BSHD_SBHD_SBHD => (NVTE_Paged_KV_HD_HD_HD, NVTE_BSHD, NVTE_SBHD),
            NVTE_Paged_KV_SBHD_BSHD_BSHD => (NVTE_Paged_KV_HD_HD_HD, NVTE_SBHD, NVTE_BSHD),
            NVTE_Paged_KV_SBHD_SBHD_SBHD => (NVTE_Paged_KV_HD_HD_HD, NVTE_SBHD, NVTE_SBHD),
            NVTE_Paged_KV_THD_BSHD_BSHD => (NVTE_Paged_KV_HD_HD_HD, NVTE_THD, NVTE_BSHD),
            NVTE_Paged_KV_THD_SBHD_SBHD => (NVTE_Paged_KV_HD_HD_HD, NVTE_THD, NVTE_SBHD),
            NVTE_BHSD_BHSD_BHSD => (NVTE_SD_SD_SD, NVTE_BHSD, NVTE_BHSD),
            NVTE_QKV_Layout_NOT_SET => return None,
        };
        Some(Self { group, q, kv })
    }

    /// Queries, keys and values are tensors of their own in one format.
    pub fn separate(format: NVTE_QKV_Format) -> Self {
        Self { group: NVTE_HD_HD_HD, q: format, kv: format }
    }

    /// The name of both formats together.
    pub(super) fn format(&self) -> NVTE_QKV_Format {
        match (self.q, self.kv) {
            (NVTE_SBHD, NVTE_BSHD) => NVTE_SBHD_2BSHD,
            (NVTE_BSHD, NVTE_SBHD) => NVTE_BSHD_2SBHD,
            (NVTE_THD, NVTE_BSHD) => NVTE_THD_2BSHD,
            (NVTE_THD, NVTE_SBHD) => NVTE_THD_2SBHD,
            (q, _) => q,
        }
    }

    /// Queries, keys and values are parts of one tensor.
    pub(super) fn interleaves_all(&self) -> bool {
        matches!(self.group, NVTE_3HD | NVTE_H3D)
    }

    /// How many of the three lie together on a side (0: queries, 1: keys and values), and whether they follow
    /// each other in every head, not only in every row.
    pub(super) fn together(&self, side: usize) -> (usize, bool) {
        match self.group {
            NVTE_3HD => (3, false),
            NVTE_H3D => (3, true),
            NVTE_HD_2HD if side == 1 => (2, false),
            NVTE_HD_H2D if side == 1 => (2, true),
            _ => (1, false),
        }
    }
}

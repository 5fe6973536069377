//! Products of groups (spec: gemm_comm, section 6): tensors to [`GroupedMatrix`], which says where the
//! members are and which way round they are stored.

use super::config::GroupedMatmulConfig;
use super::grouped_casts::{Casts, GroupCast};
use super::*;
use crate::backend;
use crate::device_check;
use crate::types::NVTEDType::*;
use std::fmt;
use std::ptr::{null, null_mut};

/// Bytes that the ABI asks callers to provide.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;
const OPERANDS: &[NVTEDType] =
    &[kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3, kNVTEFloat8E5M2];

/// Bytes of workspace for the preparation of a product of so many members.
pub(crate) fn setup_bytes(num_tensors: usize) -> usize {
    // Eight arrays of addresses, each aligned to 16 bytes but the last, and seven of 4-byte words.
    let (words, rest) = (num_tensors.saturating_mul(8 * 8 + 7 * 4), num_tensors % 2);
    words.saturating_add(rest * 7 * 8 + 256)
}

/// Matrices as a caller gives them: a grouped tensor, or a tensor for each member.
#[expect(clippy::large_enum_variant, reason = "it lives for one call, on the stack")]
pub(crate) enum Source<T> {
    Group(GroupedTensor),
    List(Vec<T>),
}

impl<T> Source<T> {
    /// Refuses another number of members than that of B. `name` is that of a group, and `length_name` that
    /// of the length of a list.
    fn check_count(&self, name: &str, length_name: &str, n: usize) -> Result<()> {
        match self {
            Self::Group(group) if group.num_tensors != n => {
                let name = format!("{name}.num_tensors");
                Err(Error::argument(name, format!("{n}, as in B"), group.num_tensors))
            }
            Self::Group(_) => Ok(()),
            Self::List(list) => check_length((length_name, list.len()), n),
        }
    }
}

/// Refuses a list of another length than the `n` members of B.
pub(super) fn check_length((name, length): (&str, usize), n: usize) -> Result<()> {
    match length == n {
        true => Ok(()),
        false => Err(Error::argument(name, format!("{n}, as the members of B"), length)),
    }
}

/// An entry of a list of tensors, for messages.
struct ListEntry<'a>(&'a str, usize);

impl Display for ListEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.0, self.1)
    }
}

/// A member without elements.
const NO_MEMBER: GroupedMember =
    GroupedMember { data: null_mut(), scale_inv: null(), outer: 0, inner: 0 };

/// An operand, and what the host knows of it.
struct Operand {
    matrix: GroupedMatrix,
    /// What `matrix.members` points to.
    list: Vec<GroupedMember>,
    /// Mean sizes, as far as they can be told.
    mean: (usize, usize),
    /// Of a group with elements.
    group: Option<GroupCast>,
}

impl Operand {
    /// An operand without data, whose members have no elements.
    fn new(mode: NVTEScalingMode, dtype: NVTEDType) -> Self {
        let matrix = GroupedMatrix {
            data: null_mut(),
            members: null(),
            outer_dims: null(),
            inner_dims: null(),
            offsets: null(),
            scale_inv: null(),
            elements: 0,
            scale_entries: 0,
            outer: 0,
            inner: 0,
            mode,
            dtype,
            transposed: false,
            swizzled: false,
        };
        Self { matrix, list: Vec::new(), mean: (0, 0), group: None }
    }

    /// The sizes of a grouped tensor, whose first dimension is the outer one, or with `flip` the inner.
    fn with_group(mut self, group: &Group, (rows, cols): (usize, usize), flip: bool) -> Self {
        let n = group.num_tensors;
        let (first, last) = (!group.first_dims.is_null(), !group.last_dims.is_null());
        let even = if last { rows } else { rows / n };
        let mean = (if first && last { 1 } else { even }, if last { cols / n } else { cols });
        let order = |(first, last)| if flip { (last, first) } else { (first, last) };
        (self.matrix.outer, self.matrix.inner) = order((even, cols));
        (self.mean.0, self.mean.1) = order(mean);
        let (first, last) = (group.first_dims, group.last_dims);
        let dims = if flip { (last, first) } else { (first, last) };
        (self.matrix.outer_dims, self.matrix.inner_dims) = dims;
        self.matrix.offsets = group.offsets;
        self
    }

    fn with_list(mut self, list: Vec<GroupedMember>) -> Self {
        let mean = |size: fn(&GroupedMember) -> usize| {
            list.iter().map(|member| size(member) as u128).sum::<u128>() / list.len() as u128
        };
        self.mean = (mean(|m| m.outer) as usize, mean(|m| m.inner) as usize);
        self.list = list;
        self.matrix.members = self.list.as_ptr();
        self
    }

    /// Outer and inner dimension of member `i`, where the host knows them.
    fn size(&self, i: usize) -> (Option<usize>, Option<usize>) {
        let m = &self.matrix;
        match self.list.get(i) {
            Some(member) if member.data.is_null() => (None, None),
            Some(member) => (Some(member.outer), Some(member.inner)),
            None => {
                let known = |dims: *const i64, size| dims.is_null().then_some(size);
                (known(m.outer_dims, m.outer), known(m.inner_dims, m.inner))
            }
        }
    }

    /// Whether no member has an element.
    fn is_empty(&self) -> bool {
        let empty = |member: &GroupedMember| member.outer == 0 || member.inner == 0;
        self.matrix.data.is_null() && self.list.iter().all(empty)
    }

    fn in_blocks(&self) -> bool {
        self.matrix.mode.float_blocks()
    }
}

/// FP8 data can be contiguous along the outer dimension.
fn any_layout(dtype: NVTEDType) -> Result<bool> {
    Ok(!dtype.is_fp8() || non_tn_fp8_gemm_supported()?)
}

/// Whether a matrix is stored as `[k, outer]`, after the direction has been chosen.
fn stored_transposed(mode: NVTEScalingMode, k_contiguous: bool, rowwise: bool) -> bool {
    match mode {
        NVTE_MXFP8_1D_SCALING => !rowwise,
        _ => k_contiguous != rowwise,
    }
}

/// An operand that is a grouped tensor; none if it has no data. `k_last` says that its last dimension
/// is the contracted one.
fn group_operand(
    name: &str,
    tensor: &GroupedTensor,
    k_last: bool,
    stream: cudaStream_t,
) -> Result<Operand> {
    let (mut group, (rows, cols)) = check::any_members(name, tensor)?;
    check::fp8_scaling(name, tensor.mode)?;
    let (mode, dtype) = (tensor.mode, tensor.dtype());
    let mut operand = Operand::new(mode, dtype).with_group(&group, (rows, cols), !k_last);
    let directions = [tensor.rowwise.is_set(), tensor.colwise.is_set()];
    if rows * cols == 0 {
        operand.matrix.offsets = null();
        return Ok(operand);
    }
    let per_tensor = mode == NVTE_DELAYED_TENSOR_SCALING;
    let any_layout = per_tensor && any_layout(dtype)?;
    let rowwise = reads_rowwise(name, directions, per_tensor, k_last, any_layout)?;
    check::dtype(name, dtype, OPERANDS)?;
    let (field, data, scale_inv) = match rowwise {
        true => ("", &tensor.rowwise, &tensor.rowwise_scale_inv),
        false => ("columnwise_", &tensor.colwise, &tensor.colwise_scale_inv),
    };
    let matrix = &mut operand.matrix;
    matrix.data = check::grouped_data(format_args!("{name}.{field}data"), data, (rows, cols))?;
    matrix.dtype = data.dtype;
    matrix.transposed = stored_transposed(mode, k_last, rowwise);
    matrix.swizzled = tensor.tiled();
    if !per_tensor {
        check::fp8(name, data.dtype)?;
    }
    if data.dtype.is_fp8() {
        let name = format_args!("{name}.{field}scale_inv");
        let direction = (mode, !rowwise);
        let shape = (rows, cols);
        matrix.scale_inv = check::grouped_scales(name, scale_inv, direction, &mut group, shape)?;
        matrix.scale_entries = scale_inv.shape.numel();
    }
    matrix.elements = check::common_room(&[data]);
    group.elements = matrix.elements;
    device_check::group(name, &group, (rows, cols), mode, stream)?;
    operand.group = Some(GroupCast { group, rows, cols });
    Ok(operand)
}

/// An operand that is a list of tensors, of which those without data are empty. A direction can be
/// read if every other tensor has it.
fn list_operand(tensors: &[Tensor], k_last: bool) -> Result<Operand> {
    let absent = |tensor: &Tensor| !tensor.rowwise.is_set() && !tensor.colwise.is_set();
    let present = || tensors.iter().enumerate().filter(|(_, tensor)| !absent(tensor));
    let Some((first_index, first)) = present().next() else {
        let operand = Operand::new(tensors[0].mode, tensors[0].dtype());
        return Ok(operand.with_list(vec![NO_MEMBER; tensors.len()]));
    };
    let first_name = &ListEntry("A_list", first_index);
    let mode = first.mode;
    for (i, tensor) in present() {
        let name = ListEntry("A_list", i);
        check::fp8_scaling(&name, tensor.mode)?;
        if tensor.mode != mode {
            let expected = format!("{mode}, as {first_name}");
            return Err(Error::argument(format!("{name}.scaling_mode"), expected, tensor.mode));
        }
        if tensor.tiled() != first.tiled() {
            let (expected, got) = (u8::from(first.tiled()), u8::from(tensor.tiled()));
            let name = format!("{name}.with_gemm_swizzled_scales");
            return Err(Error::argument(name, format!("{expected}, as {first_name}"), got));
        }
    }
    check::dtype(first_name, first.dtype(), OPERANDS)?;
    let per_tensor = mode == NVTE_DELAYED_TENSOR_SCALING;
    let any_layout = per_tensor && any_layout(first.dtype())?;
    let directions = [
        present().all(|(_, tensor)| tensor.rowwise.is_set()),
        present().all(|(_, tensor)| tensor.colwise.is_set()),
    ];
    let rowwise = reads_rowwise(first_name, directions, per_tensor, k_last, any_layout)?;
    let field = if rowwise { "" } else { "columnwise_" };
    let dtype = if rowwise { first.rowwise.dtype } else { first.colwise.dtype };
    let mut operand = Operand::new(mode, dtype);
    operand.matrix.transposed = stored_transposed(mode, k_last, rowwise);
    operand.matrix.swizzled = first.tiled();
    let member = |(i, tensor): (usize, &Tensor)| {
        let name = ListEntry("A_list", i);
        let (data, scale_inv) = match rowwise {
            true => (&tensor.rowwise, &tensor.rowwise_scale_inv),
            false => (&tensor.colwise, &tensor.colwise_scale_inv),
        };
        let (rows, cols) = tensor.shape("A_list")?.flatten();
        let (outer, inner) = if k_last { (rows, cols) } else { (cols, rows) };
        let member = GroupedMember { data: data.ptr(), scale_inv: null(), outer, inner };
        if absent(tensor) || outer * inner == 0 {
            // Without an address the member has no elements, so it adds nothing along k, whatever its
            // shape says.
            return Ok(if data.ptr().is_null() { NO_MEMBER } else { member });
        }
        check::dtype(format_args!("{name}.{field}data"), data.dtype, &[dtype])?;
        if data.shape.numel() != outer * inner {
            let expected = format!("{} elements, as the other direction", outer * inner);
            let name = format!("{name}.{field}data.shape");
            return Err(Error::argument(name, expected, data.shape));
        }
        check::pointer(format_args!("{name}.{field}data"), data)?;
        let name = format_args!("{name}.{field}scale_inv");
        let scale_inv = match per_tensor {
            true if dtype.is_fp8() => check::scalar(name, scale_inv)?.cast(),
            true => null_mut(),
            false => block_scales(name, scale_inv, (mode, !rowwise), (rows, cols))?,
        };
        Ok(GroupedMember { scale_inv, ..member })
    };
    if !per_tensor {
        check::fp8(first_name, dtype)?;
    }
    let members = tensors.iter().enumerate().map(member).collect::<Result<_>>()?;
    Ok(operand.with_list(members))
}

/// The scale matrix of a lone tensor, as it lies in a group: with the usual padding.
fn block_scales(
    name: impl Display,
    buffer: &Buffer,
    direction: (NVTEScalingMode, bool),
    shape: (usize, usize),
) -> Result<*mut c_void> {
    let (inv, stride) = check::block_scales(&name, buffer, direction, shape)?;
    let pitch = direction.0.scaling().scale_pitch(direction.1, shape);
    if stride != pitch {
        return Err(Error::argument(
            format!("{name}.shape"),
            format!("{pitch} scales in each row"),
            stride,
        ));
    }
    Ok(inv)
}

/// C or D as a grouped tensor, whose data may be absent if there is no element.
fn group_output(name: &str, tensor: &GroupedTensor, stream: cudaStream_t) -> Result<Operand> {
    check::grouped_per_tensor(name, tensor)?;
    let (group, shape) = check::any_members(name, tensor)?;
    let dtype = tensor.rowwise.dtype;
    let mut operand = Operand::new(tensor.mode, dtype).with_group(&group, shape, false);
    if shape.0 * shape.1 > 0 {
        check::high_precision(name, dtype)?;
        let data = check::grouped_data(format_args!("{name}.data"), &tensor.rowwise, shape)?;
        operand.matrix.data = data;
        operand.matrix.elements = check::common_room(&[&tensor.rowwise]);
        let group = Group { elements: operand.matrix.elements, ..group };
        device_check::group(name, &group, shape, tensor.mode, stream)?;
    }
    Ok(operand)
}

/// C or D as a list of tensors; those that are absent are members of `other`.
fn list_output<'a>(
    list_name: &str,
    tensors: impl ExactSizeIterator<Item = Option<&'a Tensor>>,
    other: Option<&Operand>,
) -> Result<Operand> {
    let mut dtype = other.map(|other| other.matrix.dtype);
    let mut members = backend::memory::reserve("a list of tensors", tensors.len())?;
    for (i, tensor) in tensors.enumerate() {
        let name = &ListEntry(list_name, i);
        let tensor = match (tensor, other) {
            (Some(tensor), _) => tensor,
            (None, Some(other)) => {
                members.push(other.list[i]);
                continue;
            }
            (None, None) => unreachable!("only entries of C may be absent"),
        };
        check::per_tensor(name, tensor)?;
        let (outer, inner) = tensor.rowwise.shape.flatten();
        match dtype {
            Some(dtype) => check::dtype(name, tensor.rowwise.dtype, &[dtype])?,
            None => check::high_precision(name, tensor.rowwise.dtype)?,
        }
        dtype = Some(tensor.rowwise.dtype);
        let data = check::pointer(format_args!("{name}.data"), &tensor.rowwise)?;
        members.push(GroupedMember { data, scale_inv: null(), outer, inner });
    }
    let operand = Operand::new(NVTE_DELAYED_TENSOR_SCALING, dtype.unwrap_or(kNVTEFloat32));
    Ok(operand.with_list(members))
}

/// A vector of one factor for all members or one for each: address and distance.
fn factors(name: &str, buffer: &Buffer, n: usize) -> Result<(*const f32, usize)> {
    check::dtype(name, buffer.dtype, &[kNVTEFloat32])?;
    let length = buffer.shape.numel();
    if length != 1 && length != n {
        let expected = format!("1 or {n} elements");
        return Err(Error::argument(format!("{name}.shape"), expected, buffer.shape));
    }
    let ptr = check::pointer(format_args!("{name}.data"), buffer)?;
    Ok((ptr.cast_const().cast(), usize::from(length > 1)))
}

/// Refuses two sizes of a member that the host knows and that differ.
fn check_sizes(
    n: usize,
    (expected_name, expected): (&str, impl Fn(usize) -> Option<usize>),
    (name, got): (&str, impl Fn(usize) -> Option<usize>),
) -> Result<()> {
    for i in 0..n {
        if let (Some(expected), Some(got)) = (expected(i), got(i))
            && expected != got
        {
            let expected = format!("{expected}, as {expected_name}, in member {i}");
            return Err(Error::argument(name, expected, got));
        }
    }
    Ok(())
}

/// `D = alpha * op(B) op(A) + beta * C` of each member.
pub(crate) struct GroupedProduct {
    pub a: Source<Tensor>,
    pub transa: bool,
    pub b: GroupedTensor,
    pub transb: bool,
    /// The matrices to add; without them D. Members that are absent from a list are those of D.
    pub c: Option<Source<Option<Tensor>>>,
    pub d: Source<Tensor>,
    pub alpha: Buffer,
    pub beta: Buffer,
    pub setup_workspace: Buffer,
    pub workspace: Buffer,
    pub config: GroupedMatmulConfig,
}

impl GroupedProduct {
    /// Checks everything and runs the product; nothing if D is empty.
    pub fn run(&self, stream: cudaStream_t) -> Result<()> {
        let config = &self.config;
        check::member_count("B", &self.b)?;
        let n = self.b.num_tensors;
        self.a.check_count("A", "num_a_tensors", n)?;
        let a = match &self.a {
            Source::Group(group) => group_operand("A", group, self.transa, stream)?,
            Source::List(list) => list_operand(list, self.transa)?,
        };
        let b = group_operand("B", &self.b, !self.transb, stream)?;
        check_operands(&a, &b)?;
        if a.in_blocks() {
            let name = "config.use_split_accumulator";
            drop_in::split_accumulator((name, config.split_accumulator))?;
        }
        self.d.check_count("D", "num_d_tensors", n)?;
        let d = match &self.d {
            Source::Group(group) => group_output("D", group, stream)?,
            Source::List(list) => list_output("D_list", list.iter().map(Some), None)?,
        };
        if let Some(c) = &self.c {
            c.check_count("C", "num_c_tensors", n)?;
        }
        let c = match &self.c {
            None => None,
            Some(Source::Group(group)) => Some(group_output("C", group, stream)?),
            Some(Source::List(list)) => {
                Some(list_output("C_list", list.iter().map(Option::as_ref), Some(&d))?)
            }
        };
        check_sizes(n, ("A", |i| a.size(i).1), ("B (contracted dimension)", |i| b.size(i).1))?;
        check_sizes(n, ("A", |i| a.size(i).0), ("D (last dimension)", |i| d.size(i).1))?;
        check_sizes(n, ("B", |i| b.size(i).0), ("D (first dimension)", |i| d.size(i).0))?;
        let mut c_matrix = d.matrix;
        if let Some(c) = &c {
            check_sizes(n, ("D", |i| d.size(i).0), ("C (first dimension)", |i| c.size(i).0))?;
            check_sizes(n, ("D", |i| d.size(i).1), ("C (last dimension)", |i| c.size(i).1))?;
            let (data, members, offsets) = (c.matrix.data, c.matrix.members, c.matrix.offsets);
            let elements = c.matrix.elements;
            if !data.is_null() || !members.is_null() {
                check::dtype("C", c.matrix.dtype, &[d.matrix.dtype])?;
                c_matrix = GroupedMatrix { data, members, offsets, elements, ..d.matrix };
            }
        }
        let (alpha, alpha_stride) = factors("alpha", &self.alpha, n)?;
        let (beta, beta_stride) = factors("beta", &self.beta, n)?;
        let (setup_workspace, setup_bytes) = setup_workspace(&self.setup_workspace, n)?;
        let (workspace, workspace_bytes) = workspace(&self.workspace)?;
        check_sm_count(("config.sm_count", config.sm_count))?;
        if d.is_empty() {
            return Ok(());
        }
        // If one operand has no elements, those of the other are not multiplied.
        let nothing = Operand::new(NVTE_DELAYED_TENSOR_SCALING, kNVTEBFloat16).matrix;
        let [a_matrix, b_matrix] = match a.is_empty() || b.is_empty() {
            true => [nothing; 2],
            false => [a.matrix, b.matrix],
        };
        let (m, n_mean) = match d.list.is_empty() {
            true => (d.mean.1, d.mean.0),
            false => (a.mean.0, b.mean.0),
        };
        let mean = |set: Option<i64>, known| set.map_or(known, |set| set.max(0) as usize);
        let args = GroupedGemmArgs {
            a: a_matrix,
            b: b_matrix,
            c: c_matrix,
            d: d.matrix,
            alpha,
            beta,
            alpha_stride,
            beta_stride,
            num_tensors: n,
            setup_workspace,
            setup_bytes,
            workspace,
            workspace_bytes,
            mean_m: mean(config.avg_m, m),
            mean_n: mean(config.avg_n, n_mean),
            mean_k: mean(config.avg_k, a.mean.1),
            split_accumulator: config.split_accumulator,
            sm_count: config.sm_count,
        };
        let casts = Casts::run(&args, [&a, &b].map(|x| (x.group.as_ref(), &x.list[..])), stream)?;
        backend::run(casts.as_ref().map_or(&args, |casts| &casts.args), stream)
    }
}

/// Rules about both operands, unless nothing is multiplied.
fn check_operands(a: &Operand, b: &Operand) -> Result<()> {
    if a.is_empty() || b.is_empty() {
        return Ok(());
    }
    check_pair(a.matrix.mode, b.matrix.mode)?;
    let (a, b) = (a.matrix.dtype, b.matrix.dtype);
    match a == b || a.is_fp8() && b.is_fp8() {
        true => Ok(()),
        false => Err(Error::argument("B.dtype", format!("{a}, as A, or both FP8"), b)),
    }
}

/// The workspace of the preparation.
fn setup_workspace(buffer: &Buffer, n: usize) -> Result<(*mut c_void, usize)> {
    let name = "workspace_setup";
    let (least, got) = (setup_bytes(n), buffer.bytes());
    if got < least || buffer.ptr().is_null() {
        return Err(Error::argument(name, format!("{least} or more bytes"), got));
    }
    if !(buffer.ptr() as usize).is_multiple_of(16) {
        let got = format!("{:p}", buffer.ptr());
        return Err(Error::argument(name, "an address aligned to 16 bytes", got));
    }
    Ok((buffer.ptr(), got))
}

/// The workspace of the products, from its first 256-byte boundary on.
fn workspace(buffer: &Buffer) -> Result<(*mut c_void, usize)> {
    if buffer.bytes() < WORKSPACE_BYTES || buffer.ptr().is_null() {
        let expected = format!("{WORKSPACE_BYTES} or more bytes");
        return Err(Error::argument("workspace_cublas", expected, buffer.bytes()));
    }
    Ok(aligned_workspace(buffer))
}

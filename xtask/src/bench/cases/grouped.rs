//! Products of the members of a group, as layers of experts have them.

use super::*;

/// `tokens` rows that are split evenly among the experts, each with a weight `[outputs, inputs]`.
#[derive(Clone, Copy)]
struct Experts {
    dtype: DType,
    experts: usize,
    tokens: usize,
    inputs: usize,
    outputs: usize,
    scales: Scales,
}

/// What the scales of FP8 operands are for.
#[derive(Clone, Copy, PartialEq)]
enum Scales {
    Members,
    /// 128 elements of each row of tokens, and 128 x 128 of each weight.
    Blocks,
    /// MXFP8: 32 elements of each row.
    Mx,
}

#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Forward,
    Dgrad,
    Wgrad,
}

pub fn cases(kind: Kind) -> Vec<Case> {
    let (few, many) = match kind {
        Kind::Gpu => ((8, 16384, 4096, 14336), (64, 16384, 7168, 2048)),
        Kind::Cpu => ((4, 512, 512, 1024), (16, 256, 512, 256)),
    };
    let experts = |dtype, (experts, tokens, inputs, outputs)| Experts {
        dtype,
        experts,
        tokens,
        inputs,
        outputs,
        scales: Scales::Members,
    };
    let mut cases: Vec<Case> = [few, many]
        .into_iter()
        .flat_map(|sizes| {
            let experts = experts(DType::Bf16, sizes);
            [Pass::Forward, Pass::Dgrad, Pass::Wgrad].map(|pass| experts.grouped(pass))
        })
        .collect();
    cases.extend([few, many].map(|sizes| experts(DType::E4m3, sizes).grouped(Pass::Forward)));
    let deep = match kind {
        Kind::Gpu => (8, 16384, 7168, 4096),
        Kind::Cpu => few,
    };
    cases.extend([deep, many].map(|sizes| {
        let experts = Experts { scales: Scales::Blocks, ..experts(DType::E4m3, sizes) };
        experts.grouped(Pass::Forward)
    }));
    cases.extend([deep, many].map(|sizes| {
        let experts = Experts { scales: Scales::Mx, ..experts(DType::E4m3, sizes) };
        experts.grouped(Pass::Forward)
    }));
    cases.extend([few, many].map(|sizes| experts(DType::Bf16, sizes).several()));
    cases
}

impl Experts {
    fn work(&self) -> Work {
        let count = 2.0 * self.tokens as f64 * self.inputs as f64 * self.outputs as f64;
        // Hopper multiplies MXFP8 as BF16.
        let dtype = if self.scales == Scales::Mx { DType::Bf16 } else { self.dtype };
        Work::Flops { count, dtype }
    }

    fn shapes(&self) -> String {
        let Self { dtype, experts, tokens, inputs, outputs, scales } = *self;
        let blocks = match scales {
            Scales::Members => "",
            Scales::Blocks => " block 1d x 2d",
            Scales::Mx => " mx",
        };
        format!("{}{blocks} {experts} x [{}x{inputs}x{outputs}]", dtype.name(), tokens / experts)
    }

    /// One call, of sizes that the device alone knows. Another library needs a later cuBLAS for it.
    fn grouped(self, pass: Pass) -> Case {
        let name = match pass {
            Pass::Forward => "forward",
            Pass::Dgrad => "dgrad",
            Pass::Wgrad => "wgrad",
        };
        let name = format!("grouped gemm {name} {}", self.shapes());
        Case::new(name, self.work(), move |b| self.build(b, pass)).alone()
    }

    fn build<'a>(self, b: &Build<'a>, pass: Pass) -> Result<Call<'a>> {
        let Self { dtype, experts, tokens, inputs, outputs, scales } = self;
        let (api, stream) = (b.api, b.stream());
        let sizes = vec![tokens / experts; experts];
        // `each`: scales of a member.
        let scaled = |group: Grouped<'a>, each: usize| match dtype {
            DType::E4m3 => {
                let scales = match scales {
                    Scales::Mx => b.exponents(&[experts * each])?,
                    _ => b.floats(&vec![0.5; experts * each])?,
                };
                Ok(group.set(GroupedParam::RowwiseScaleInv, &scales))
            }
            _ => Ok::<_, anyhow::Error>(group),
        };
        let of_mx =
            |rows, cols| (MXFP8, block_layout(MXFP8, false, (rows, cols)).1.iter().product());
        let rows = |data: &Basic, cols: usize| {
            let (mode, each) = match scales {
                Scales::Members => (0, 1),
                Scales::Blocks => {
                    (BLOCKS_1D, cols.div_ceil(128) * (tokens / experts).next_multiple_of(4))
                }
                Scales::Mx => of_mx(tokens / experts, cols),
            };
            let group = b.group(mode, &sizes, cols)?;
            scaled(group.set(GroupedParam::Rowwise, data), each)
        };
        let results = |data: &Basic, cols| {
            Ok::<_, anyhow::Error>(b.group(0, &sizes, cols)?.set(GroupedParam::Rowwise, data))
        };
        let weights = |data: &Basic| {
            let (mode, each) = match scales {
                Scales::Members => (0, 1),
                Scales::Blocks => {
                    (BLOCKS_2D, outputs.div_ceil(128) * inputs.div_ceil(128).next_multiple_of(4))
                }
                Scales::Mx => of_mx(outputs, inputs),
            };
            let group = Grouped::new(api, mode, experts, experts * outputs, inputs);
            scaled(group.set(GroupedParam::Rowwise, data), each)
        };
        let random = |dtype, rows: usize, cols: usize| b.random(dtype, &[rows * cols]);
        let result = |len: usize| b.output("D", DType::Bf16, &[len], Rule::Close);
        let w = |data| weights(data);
        // The operands A, B and D of row-major D = op(B) op(A).
        let (a, right, d, transa, transb) = match pass {
            Pass::Forward => (
                w(&random(dtype, experts * outputs, inputs)?)?,
                rows(&random(dtype, tokens, inputs)?, inputs)?,
                results(&result(tokens * outputs)?, outputs)?,
                1,
                0,
            ),
            Pass::Dgrad => (
                w(&random(dtype, experts * outputs, inputs)?)?,
                rows(&random(dtype, tokens, outputs)?, outputs)?,
                results(&result(tokens * inputs)?, inputs)?,
                0,
                0,
            ),
            Pass::Wgrad => (
                rows(&random(dtype, tokens, inputs)?, inputs)?,
                rows(&random(dtype, tokens, outputs)?, outputs)?,
                w(&result(experts * outputs * inputs)?)?,
                0,
                1,
            ),
        };
        let (alpha, beta) = (b.tensor(&b.floats(&[1.0])?), b.tensor(&b.floats(&[0.0])?));
        let setup = api.nvte_get_grouped_gemm_setup_workspace_size(experts);
        let setup = b.tensor(&b.alloc(DType::Byte, &[setup])?);
        // MXFP8 operands are cast to BF16 in the workspace.
        let casts = match scales {
            Scales::Mx => 2 * (tokens * inputs + experts * outputs * inputs) + (1 << 20),
            _ => 0,
        };
        let workspace = b.tensor(&b.alloc(DType::Byte, &[(32 << 20) + casts])?);
        let none = Handle::NULL;
        Ok(Box::new(move || {
            api.nvte_grouped_gemm(
                a.h(),
                transa,
                right.h(),
                transb,
                none,
                d.h(),
                alpha.h(),
                beta.h(),
                setup.h(),
                workspace.h(),
                none,
                stream,
            );
        }))
    }

    /// The forward products as several of sizes that the host knows.
    fn several(self) -> Case {
        let name = format!("multi-tensor gemm {}", self.shapes());
        Case::new(name, self.work(), move |b| {
            let Self { dtype, experts, tokens, inputs, outputs, .. } = self;
            let (api, stream) = (b.api, b.stream());
            let each = tokens / experts;
            let mut lists: [Vec<Tensor>; 4] = Default::default();
            for _ in 0..experts {
                let weight = b.tensor(&b.random(dtype, &[outputs, inputs])?);
                let x = b.tensor(&b.random(dtype, &[each, inputs])?);
                let d = b.tensor(&b.output("D", DType::Bf16, &[each, outputs], Rule::Close)?);
                let none = Tensor::new(api);
                lists.iter_mut().zip([weight, x, d, none]).for_each(|(list, t)| list.push(t));
            }
            let handles: Vec<Vec<Handle>> =
                lists.iter().map(|list| list.iter().map(Tensor::h).collect()).collect();
            let workspaces = (0..4)
                .map(|_| Ok(b.tensor(&b.alloc(DType::Byte, &[32 << 20])?)))
                .collect::<Result<Vec<_>>>()?;
            let workspace_handles: Vec<Handle> = workspaces.iter().map(Tensor::h).collect();
            Ok(Box::new(move || {
                let _ = (&lists, &workspaces);
                let [a, x, d, none] = [0, 1, 2, 3].map(|i| handles[i].as_ptr());
                api.nvte_multi_tensor_gemm(
                    a,
                    x,
                    d,
                    none,
                    none,
                    experts as i32,
                    true,
                    false,
                    false,
                    workspace_handles.as_ptr(),
                    false,
                    false,
                    0,
                    stream,
                );
            }))
        })
    }
}

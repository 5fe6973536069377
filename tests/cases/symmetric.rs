//! Products that are symmetric.

use super::*;

pub fn symmetric_gemm(rng: &mut Rng, index: usize) -> Case {
    // Smaller ones are left to whole products. The larger ones here leave some tiles for the end, which are divided
    // along k if there is memory for the parts.
    let large = index % 4 == 1;
    let (n, k) = match large {
        true => (16 * rng.within(177, 192), 8 * rng.within(64, 80)),
        false => (16 * rng.within(130, 160), 8 * rng.within(1, 20)),
    };
    let workspace_bytes = if large { rng.pick(&[0, 32 << 20]) } else { 0 };
    let dtype = rng.pick(&[kNVTEBFloat16, kNVTEFloat16]);
    let transposed = index.is_multiple_of(3);
    let factors = [1.0, -0.5, 0.0];
    let [alpha, beta, diagonal] = [rng.pick(&factors[..2]), rng.pick(&factors), rng.pick(&factors)];
    let mut b = Buffers::default();
    // At addresses that bulk copies take.
    let [x, c] = [n * k, n * n].map(|len| {
        let values: Vec<u8> = (0..len).flat_map(|_| rng.unit().to_le_bytes()).collect();
        b.add(cast(&values, kNVTEFloat32, dtype), 0)
    });
    let d = b.add(vec![0xCD; n * n * 2], 0);
    let workspace = b.add(vec![0xCD; workspace_bytes], 0);
    let what = format!(
        "{n} of {k}, {dtype:?}, {transposed}, {alpha} {beta} {diagonal}, {workspace_bytes} bytes"
    );
    let bound = if dtype == kNVTEFloat16 { 2e-3 } else { 1e-2 };
    Case::within(what, b, &[("d", dtype, Some(d), bound)], move |side| {
        let args = SymmetricGemmArgs {
            a: side.at::<c_void>(x).cast_const(),
            b: side.at::<c_void>(x).cast_const(),
            c: side.at::<c_void>(c).cast_const(),
            d: side.at(d),
            workspace: side.at(workspace),
            workspace_bytes,
            n,
            k,
            alpha,
            beta,
            diagonal,
            dtype,
            transposed,
        };
        entry(side, side.table.symmetric_gemm, args)
    })
    .scratch(Some(workspace))
}

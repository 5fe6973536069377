//! LayerNorm and RMSNorm.

use super::*;

impl Rng {
    fn norm_shape(&mut self) -> (usize, usize) {
        match self.below(6) {
            0 => (self.within(1, 300), 8 * self.within(1, 300)),
            1 => (self.within(1, 40), self.within(1, 3000)),
            2 => (self.within(1, 6), 64 * self.within(64, 512)),
            3 => (self.within(1, 3), self.within(1, 150_000)),
            4 => (self.within(500, 4000), self.within(1, 64)),
            _ => (self.within(1, 200), 256 * self.within(1, 16)),
        }
    }
}

/// The results are close, not equal: the order of sums is that of the threads. 4e-6 of the terms is
/// what float32 may be off; a result that then rounds the other way is one spacing off.
pub fn norm_forward(rng: &mut Rng, index: usize) -> Case {
    let layer = index.is_multiple_of(2);
    let (x_dtype, z_dtype) = (HIGH[index / 2 % 3], ALL[index / 6 % 5]);
    let gamma_dtype = if rng.chance(60) { x_dtype } else { rng.pick(&HIGH) };
    let (rows, cols) = rng.norm_shape();
    let mut b = Buffers::default();
    let x = b.units(rng, x_dtype, rows * cols, 2.0);
    let residual = rng.chance(30).then(|| b.units(rng, x_dtype, rows * cols, 1.0));
    let sum = residual.map(|_| b.output(rng, x_dtype, rows * cols));
    let weight = b.units(rng, gamma_dtype, cols, 1.0);
    let beta = layer.then(|| b.units(rng, gamma_dtype, cols, 1.0));
    let mu = layer.then(|| b.output(rng, kNVTEFloat32, rows));
    let rsigma = b.output(rng, kNVTEFloat32, rows);
    let z = b.output(rng, z_dtype, rows * cols);
    let transposed = rng.chance(20).then(|| b.output(rng, z_dtype, rows * cols));
    let amax = rng.chance(70).then(|| b.float(0.0));
    let scale = b.float(1.5 + rng.unit());
    let scale_inv = b.float(-7.0);
    let (zero_centered, sm_count) = (rng.chance(30), rng.pick(&[132, 132, 64, 1]));
    let call = move |side: &Side| {
        let cast = Cast {
            input: side.at(x),
            rowwise: side.at(z),
            colwise: side.maybe(transposed),
            scale: side.at(scale),
            amax: side.maybe(amax),
            rowwise_scale_inv: side.at(scale_inv),
            rows,
            cols,
            input_dtype: x_dtype,
            output_dtype: z_dtype,
            ..QUANTIZE
        };
        let cast = match is_fp8(z_dtype) {
            true => cast,
            false => Cast { scale: null(), rowwise_scale_inv: null_mut(), ..cast },
        };
        let args = NormForwardArgs {
            cast,
            residual: side.maybe(residual),
            sum: side.maybe(sum),
            gamma: Gamma {
                data: side.at(weight),
                dtype: gamma_dtype,
                zero_centered,
                rounded: false,
            },
            beta: side.maybe(beta),
            mu: side.maybe(mu),
            rsigma: side.at(rsigma),
            epsilon: 1e-5,
            norm: if layer { NVTE_Norm_Type::LayerNorm } else { NVTE_Norm_Type::RMSNorm },
            sm_count,
        };
        entry(side, side.table.norm_forward, args)
    };
    // v is at most sqrt(cols), and is scaled by at most 2.5.
    let bound = 8e-6 * (cols as f64).sqrt().min(20.0);
    let outputs = [
        ("z", z_dtype, Some(z), bound),
        ("transposed", z_dtype, transposed, bound),
        ("sum", x_dtype, sum, 0.0),
        ("mu", kNVTEFloat32, mu, 1e-5),
        ("rsigma", kNVTEFloat32, Some(rsigma), 1e-2 * 4e-6 * (cols as f64).sqrt() + 4e-5),
        ("amax", kNVTEFloat32, amax, bound + amax_spacing(z_dtype)),
        ("scale_inv", kNVTEFloat32, is_fp8(z_dtype).then_some(scale_inv), 0.0),
    ];
    Case::within(
        format!("{x_dtype:?}, {gamma_dtype:?} to {z_dtype:?}, {rows}x{cols}, layer {layer}"),
        b,
        &outputs,
        call,
    )
}

/// An amax of rounded values may be that of another rounding.
fn amax_spacing(z_dtype: NVTEDType) -> f64 {
    if is_fp8(z_dtype) { 0.0 } else { 30.0 * spacing(z_dtype).0 }
}

pub fn norm_backward(rng: &mut Rng, index: usize) -> Case {
    let (layer, x_dtype) = (index.is_multiple_of(2), HIGH[index / 2 % 3]);
    let dtype = if rng.chance(60) { x_dtype } else { rng.pick(&HIGH) };
    let (rows, cols) = rng.norm_shape();
    let mut b = Buffers::default();
    let dz = b.units(rng, dtype, rows * cols, 1.0);
    let x = b.units(rng, x_dtype, rows * cols, 2.0);
    let add = rng.chance(40).then(|| b.units(rng, dtype, rows * cols, 1.0));
    let weight = b.units(rng, dtype, cols, 1.0);
    let mu = layer.then(|| b.floats((0..rows).map(|_| 0.5 * rng.unit())));
    let rsigma = b.floats((0..rows).map(|_| 1.0 + 0.5 * rng.unit()));
    let dx = b.output(rng, x_dtype, rows * cols);
    let dgamma = b.output(rng, dtype, cols);
    let dbeta = layer.then(|| b.output(rng, dtype, cols));
    let add_sums = rng.chance(40).then(|| b.output(rng, dtype, cols));
    let dx_sums = rng.chance(40).then(|| b.output(rng, dtype, cols));
    let (zero_centered, sm_count) = (rng.chance(30), rng.pick(&[132, 132, 64, 1]));
    let parts = NormBackwardArgs::parts(rows, sm_count);
    let partial = b.add(vec![0xCD; 16 * parts * cols], 0);
    let call = move |side: &Side| {
        let args = NormBackwardArgs {
            dz: side.at(dz),
            x: side.at(x),
            add: side.maybe(add),
            mu: side.maybe(mu),
            rsigma: side.at(rsigma),
            gamma: Gamma { data: side.at(weight), dtype, zero_centered, rounded: false },
            dx: side.at(dx),
            dgamma: side.at(dgamma),
            dbeta: side.maybe(dbeta),
            partial: side.at(partial),
            parts,
            rows,
            cols,
            x_dtype,
            norm: if layer { NVTE_Norm_Type::LayerNorm } else { NVTE_Norm_Type::RMSNorm },
            sm_count,
            add_sums: side.maybe(add_sums),
            dx_sums: side.maybe(dx_sums),
        };
        entry(side, side.table.norm_backward, args)
    };
    let summed = 1e-5 * (rows as f64);
    let outputs = [
        ("dx", x_dtype, Some(dx), 4e-5),
        ("dgamma", dtype, Some(dgamma), summed),
        ("dbeta", dtype, dbeta, summed),
        ("add_sums", dtype, add_sums, summed),
        ("dx_sums", dtype, dx_sums, 4.0 * summed),
    ];
    Case::within(format!("{x_dtype:?}, {dtype:?}, {rows}x{cols}, layer {layer}"), b, &outputs, call)
        .scratch([partial])
}

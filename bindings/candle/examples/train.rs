//! Trains a layer of a Transformer in FP8, between an embedding and a head that are candle's own: it learns to say which
//! token came two places before.

use candle_core::{D, DType, Device, Tensor, Var};
use nvte::TransformerLayerConfig;
use nvte::{ActivationType, QKVFormat, Recipe, RecipeKind, Stream, TransformerLayer};
use nvte_candle::{ModuleOp, context};
use std::error::Error;

const TOKENS: usize = 16;
const HIDDEN: usize = 32;
const LENGTH: usize = 16;
const BATCH: usize = 16;
const STEPS: usize = 120;
const DISTANCE: usize = 2;

/// A numbers generator, so that each run is the same.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }

    fn matrix(&mut self, rows: usize, columns: usize, size: f32) -> candle_core::Result<Var> {
        let values: Vec<f32> =
            (0..rows * columns).map(|_| (2.0 * self.next() - 1.0) * size).collect();
        Var::from_vec(values, (rows, columns), &Device::Cpu)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let context = context()?;
    let config = TransformerLayerConfig::new()
        .hidden_size(HIDDEN)
        .ffn_hidden_size(4 * HIDDEN)
        .num_attention_heads(2)
        .activation(ActivationType::Swiglu)
        .qkv_format(QKVFormat::BSHD);
    let layer = TransformerLayer::new(context, &config, &Stream::default())?;
    let recipe = Recipe::of_kind(RecipeKind::CurrentScaling)?;
    let op = ModuleOp::new(context, layer, HIDDEN, Some(recipe))?;
    let initial = op.initial_values()?;
    let parameters = Var::from_vec(initial.clone(), initial.len(), &Device::Cpu)?;

    let mut random = Random(1);
    let embedding = random.matrix(TOKENS, HIDDEN, 1.0)?;
    let positions = random.matrix(LENGTH, HIDDEN, 1.0)?;
    let head = random.matrix(HIDDEN, TOKENS, 0.2)?;
    let variables = [&parameters, &embedding, &positions, &head];
    let zeros = |v: &&Var| v.zeros_like().map(|zeros| (zeros.clone(), zeros));
    let mut moments = variables.iter().map(zeros).collect::<candle_core::Result<Vec<_>>>()?;
    let (mut first, mut last) = (0.0, 0.0);
    for step in 1..=STEPS {
        let tokens: Vec<u32> =
            (0..BATCH * LENGTH).map(|_| (random.next() * TOKENS as f32) as u32).collect();
        let shifted = |i: usize| tokens[if i % LENGTH < DISTANCE { i } else { i - DISTANCE }];
        let targets: Vec<u32> = (0..tokens.len()).map(shifted).collect();
        let tokens = Tensor::from_vec(tokens, BATCH * LENGTH, &Device::Cpu)?;
        let targets = Tensor::from_vec(targets, (BATCH * LENGTH, 1), &Device::Cpu)?;

        let x = embedding.index_select(&tokens, 0)?.reshape((BATCH, LENGTH, HIDDEN))?;
        let x = x.broadcast_add(positions.as_tensor())?;
        let y = op.forward(&x, parameters.as_tensor())?;
        let logits = y.reshape((BATCH * LENGTH, HIDDEN))?.matmul(head.as_tensor())?;
        let most = logits.max_keepdim(D::Minus1)?.detach();
        let shifted = logits.broadcast_sub(&most)?;
        let sums = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
        let loss = (sums - shifted.gather(&targets, D::Minus1)?)?.mean_all()?;

        // Adam.
        let gradients = loss.backward()?;
        let unbias = |beta: f64| 1.0 / (1.0 - beta.powi(step as i32));
        for (variable, (m, v)) in variables.iter().zip(&mut moments) {
            let g = gradients.get(variable).ok_or("no gradient")?;
            *m = ((&*m * 0.9)? + (g * 0.1)?)?.detach();
            *v = ((&*v * 0.99)? + (g.sqr()? * 0.01)?)?.detach();
            let divisor = ((&*v * unbias(0.99))?.sqrt()? + 1e-8)?;
            let update = ((&*m * (0.01 * unbias(0.9)))? / divisor)?;
            variable.set(&(variable.as_tensor() - update)?.detach())?;
        }
        last = loss.to_dtype(DType::F32)?.to_scalar::<f32>()?;
        if step == 1 {
            first = last;
        }
        if step % 20 == 0 || step == 1 {
            println!("step {step:4}   loss {last:.4}");
        }
    }
    if last > 0.5 * first {
        return Err(format!("the loss went from {first} to {last}").into());
    }
    Ok(())
}

//! Trains a small network on 8x8 images of digits, in float32 and in FP8 with each recipe: `mlp [digits.csv [EPOCHS]]`.
//! Forward and backward passes run in the library, loss and optimizer on the host.

use nvte::{
    Context, LayerNormMLP, LayerNormMLPConfig, Linear, LinearConfig, Module, Recipe, RecipeKind,
    Result, Step, Stream, Tensor,
};
use std::error::Error;
use std::{env, fs};

const PIXELS: usize = 64;
const CLASSES: usize = 10;
/// FP8 products want multiples of 16 (MXFP8: 32), so ten classes become 32 outputs.
const OUTPUTS: usize = 32;
const BATCH: usize = 128;
/// The last images are not trained on.
const HELD_OUT: usize = 2 * BATCH;

struct Dataset {
    /// From 0 to 1.
    pixels: Vec<f32>,
    labels: Vec<usize>,
}

fn read(path: &str) -> std::result::Result<Dataset, Box<dyn Error>> {
    let mut data = Dataset { pixels: Vec::new(), labels: Vec::new() };
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    for line in text.lines() {
        let numbers = line.split(',').map(|number| number.trim().parse::<u8>());
        let numbers = numbers.collect::<std::result::Result<Vec<_>, _>>()?;
        let (label, pixels) = numbers.split_last().ok_or("an empty line")?;
        if pixels.len() != PIXELS || usize::from(*label) >= CLASSES {
            return Err("expected 64 pixels and a digit in each line".into());
        }
        data.pixels.extend(pixels.iter().map(|pixel| f32::from(*pixel) / 16.0));
        data.labels.push((*label).into());
    }
    if data.labels.len() <= HELD_OUT + BATCH {
        return Err(format!("{path}: expected more than {} lines", HELD_OUT + BATCH).into());
    }
    Ok(data)
}

/// The parameters of a module on the host, with their state of Adam.
struct Adam<'m> {
    module: &'m Module<'m>,
    grads: &'m [Tensor<f32>],
    /// On the device, where values are copied to before the module takes them.
    staging: Vec<Tensor<f32>>,
    /// Value, momentum and variance.
    state: Vec<[Vec<f32>; 3]>,
    steps: i32,
}

/// Makes a gradient for each parameter.
fn gradients(module: &Module, stream: &Stream) -> Result<Vec<Tensor<f32>>> {
    module.parameters()?.iter().map(|p| Tensor::zeros(&p.shape, stream)).collect()
}

impl<'m> Adam<'m> {
    fn new(module: &'m Module<'m>, grads: &'m [Tensor<f32>], stream: &Stream) -> Result<Self> {
        let mut state = Vec::new();
        for (index, grad) in grads.iter().enumerate() {
            module.bind_gradient(index, grad, false)?;
            let value = module.initial_value(index)?;
            state.push([value.clone(), vec![0.0; value.len()], vec![0.0; value.len()]]);
        }
        let staging = gradients(module, stream)?;
        Ok(Adam { module, grads, staging, state, steps: 0 })
    }

    /// A step: from the gradients that a backward pass has written to values that the next forward pass reads.
    fn step(&mut self, rate: f32, stream: &Stream) -> Result<()> {
        self.steps += 1;
        let [unbias1, unbias2] = [0.9f32, 0.999].map(|decay| 1.0 / (1.0 - decay.powi(self.steps)));
        for (index, [value, momentum, variance]) in self.state.iter_mut().enumerate() {
            for (i, g) in self.grads[index].to_vec(stream)?.into_iter().enumerate() {
                momentum[i] += 0.1 * (g - momentum[i]);
                variance[i] += 0.001 * (g * g - variance[i]);
                value[i] -= rate * unbias1 * momentum[i] / ((unbias2 * variance[i]).sqrt() + 1e-8);
            }
            self.staging[index].write(value, stream)?;
            self.module.assign(index, &self.staging[index], stream)?;
        }
        Ok(())
    }
}

/// The gradient of the mean cross entropy, and how many images were recognised.
fn loss(logits: &[f32], labels: &[usize], gradient: &mut [f32]) -> usize {
    let mut right = 0;
    gradient.fill(0.0);
    for (row, label) in labels.iter().enumerate() {
        let scores = &logits[row * OUTPUTS..][..CLASSES];
        let largest = scores.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = scores.iter().map(|score| (score - largest).exp()).sum();
        for (class, score) in scores.iter().enumerate() {
            let expected = if class == *label { 1.0 } else { 0.0 };
            let probability = (score - largest).exp() / sum;
            gradient[row * OUTPUTS + class] = (probability - expected) / labels.len() as f32;
        }
        right += usize::from(scores[*label] == largest);
    }
    right
}

/// Trains, and returns the share of the held-out images that are recognised.
fn train(data: &Dataset, recipe: Option<RecipeKind>, epochs: usize) -> Result<f64> {
    let stream = Stream::new()?;
    // Declared before the modules, which borrow them.
    let (hidden_grads, output_grads);
    let context = Context::new()?;
    let recipe = recipe.map(Recipe::of_kind).transpose()?;
    let config = LayerNormMLPConfig::new().hidden_size(PIXELS).ffn_hidden_size(128).init_std(0.1);
    let hidden = LayerNormMLP::new(&context, &config.output_init_std(0.1), &stream)?;
    let config = LinearConfig::new().in_features(PIXELS).out_features(OUTPUTS).init_std(0.1);
    let output = Linear::new(&context, &config.seed(1), &stream)?;
    hidden_grads = gradients(&hidden, &stream)?;
    output_grads = gradients(&output, &stream)?;
    let mut hidden_adam = Adam::new(&hidden, &hidden_grads, &stream)?;
    let mut output_adam = Adam::new(&output, &output_grads, &stream)?;

    let [x, h, dh] = [(); 3].map(|()| Tensor::<f32>::zeros(&[BATCH, PIXELS], &stream));
    let [y, dy] = [(); 2].map(|()| Tensor::<f32>::zeros(&[BATCH, OUTPUTS], &stream));
    let (x, h, dh, y, dy) = (x?, h?, dh?, y?, dy?);
    let mut gradient = vec![0.0; BATCH * OUTPUTS];
    let step = Step::new();
    let training = data.labels.len() - HELD_OUT;
    for _ in 0..epochs {
        for first in (0..training - BATCH + 1).step_by(BATCH) {
            let labels = &data.labels[first..first + BATCH];
            x.write(&data.pixels[first * PIXELS..][..BATCH * PIXELS], &stream)?;
            let forward = || -> Result<_> {
                let tape = hidden.forward(&[&x], &[&h], &step, &stream)?;
                Ok((tape, output.forward(&[&h], &[&y], &step, &stream)?))
            };
            let (hidden_tape, output_tape) = match &recipe {
                Some(recipe) => context.autocast(recipe, forward)??,
                None => forward()?,
            };
            context.forward_update(&stream)?;
            loss(&y.to_vec(&stream)?, labels, &mut gradient);
            dy.write(&gradient, &stream)?;
            output.backward(&output_tape, &[&dy], &[&dh], &stream)?;
            hidden.backward(&hidden_tape, &[&dh], &[], &stream)?;
            context.backward_update(&stream)?;
            hidden_adam.step(0.004, &stream)?;
            output_adam.step(0.004, &stream)?;
        }
    }
    let mut right = 0;
    for first in [training, training + BATCH] {
        x.write(&data.pixels[first * PIXELS..][..BATCH * PIXELS], &stream)?;
        hidden.infer(&[&x], &[&h], &step, &stream)?;
        output.infer(&[&h], &[&y], &step, &stream)?;
        let labels = &data.labels[first..first + BATCH];
        right += loss(&y.to_vec(&stream)?, labels, &mut gradient);
    }
    Ok(right as f64 / HELD_OUT as f64)
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.csv");
    let data = read(&arguments.next().unwrap_or_else(|| default.into()))?;
    let epochs = arguments.next().map_or(Ok(12), |number| number.parse())?;
    let kinds = [
        RecipeKind::DelayedScaling,
        RecipeKind::CurrentScaling,
        RecipeKind::BlockScaling,
        RecipeKind::MXFP8,
    ];
    println!("nvte {} on {}", nvte::version(), nvte::backend_name()?);
    for recipe in [None].into_iter().chain(kinds.map(Some)) {
        let name = recipe.map_or("float32".into(), |kind| format!("{kind:?}"));
        let accuracy = train(&data, recipe, epochs)?;
        println!("{name}: {:.1} % of held-out images recognised", 100.0 * accuracy);
        if accuracy < 0.9 {
            return Err(format!("{name}: expected at least 90 %").into());
        }
    }
    Ok(())
}
